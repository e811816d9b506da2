axes { seq=4 }
axes { seq=5 }
