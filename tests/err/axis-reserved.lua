axes { micro=3 }
