"""x"""
def check_access(*a): return None
def copy_back(*a): return ()
