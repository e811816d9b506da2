axes { seq=-4 }
