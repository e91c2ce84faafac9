"""How well do predicted bandwidths of collectives agree with published ones?"""
