axes { ["two words"]=3 }
