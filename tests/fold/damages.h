/* damages.h: damage to a plan that breaks one law, where no field or list alone
 * does (laws_test.c). Each returns 0 where the plan has no such place. */
#ifndef DAMAGES_H
#define DAMAGES_H

#include "mutants.h"

int beside_its_stack(Mutant *m);
int rows_from_rows(Mutant *m);
int rows_in_no_stack(Mutant *m);
int rows_of_another(Mutant *m);
int behind_another(Mutant *m);
int no_items(Mutant *m);
int no_grain(Mutant *m);
int sent_as_narrower(Mutant *m);
int exchange_alone(Mutant *m);
int too_many_blocks(Mutant *m);
int pairs_of_none(Mutant *m);
int experts_without_map(Mutant *m);
int one_less(Mutant *m);
int adds_to_nothing(Mutant *m);
int no_kernel(Mutant *m);
int copy_too_much(Mutant *m);
int stray_int(Mutant *m);
int table_of_nothing(Mutant *m);
int frame_of_nothing(Mutant *m);
int member_less(Mutant *m);
int output_turned(Mutant *m);
int first_twice(Mutant *m);
int idle_buffer(Mutant *m);
int sum_renamed(Mutant *m);
int receipt_renamed(Mutant *m);
int weight_renamed(Mutant *m);
int step_is_fallback(Mutant *m);
int init_too_early(Mutant *m);
int forward_fills(Mutant *m);
int whole_as_term(Mutant *m);
int says_nothing(Mutant *m);
int into_host(Mutant *m);
int stores_over(Mutant *m);
int stores_not(Mutant *m);
int kernel_of_host(Mutant *m);
int text_of_both(Mutant *m);
int text_of_another(Mutant *m);

#endif
