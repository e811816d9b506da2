axes { t=4, inner={ 8, shard="ep" } }
