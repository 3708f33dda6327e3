"""x"""
def differences(*a): return iter(())
