axes { a={ 4, role="batch" }, b={ 8, role="batch" } }
loss("l", sum(param("w", "a b"), "a b"))
