axes { seq="long" }
