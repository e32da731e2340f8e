"""tau2's reference actions as a benign replay: how often does monitor mode refuse or ask where nobody attacks?"""
