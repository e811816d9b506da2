axes { batch=2, seq=4, hidden=8 }
hf { config={ model_type="\xff" } }
