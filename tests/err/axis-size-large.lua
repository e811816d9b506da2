axes { seq=2^41 }
