"""Gradient estimates with less variance: control variates, SVRG, and importance sampling."""
