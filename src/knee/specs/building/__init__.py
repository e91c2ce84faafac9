"""How is a spec made of what was read, and what is said of mistakes?"""
