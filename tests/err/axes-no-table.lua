axes "seq"
