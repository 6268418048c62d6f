"""Softmax regression on Fisher's irises: every rank has a part of the flowers, and all add up their
gradients in each step: oxccl run -n 4 python3 05_training.py ../data/iris.csv"""
import sys

import numpy as np
import oxccl
from verdict import verdict

table = np.loadtxt(sys.argv[1], delimiter=",", skiprows=1)
x, kinds = table[:, :4], table[:, 4].astype(int)
x = np.column_stack(((x - x.mean(axis=0)) / x.std(axis=0), np.ones(len(x))))
with oxccl.Comm() as comm:
    w, own = np.zeros((5, 3)), slice(comm.rank, None, comm.size)
    for _ in range(300):
        p = np.exp(x[own] @ w)
        p /= p.sum(axis=1, keepdims=True)
        good = np.count_nonzero(p.argmax(axis=1) == kinds[own])
        sums = np.append(x[own].T @ (p - np.eye(3)[kinds[own]]), good)
        comm.all_reduce(sums)
        w -= 0.5 * sums[:-1].reshape(w.shape) / len(x)
    most = comm.all_reduce(w, w.copy(), oxccl.MAX)
    same = np.array_equal(w, most)  # all ranks have come to the same weights
right = same and 0.95 * 150 <= sums[-1] <= 150
verdict(right, comm.rank, comm.size, f"{sums[-1]:.0f} of {len(x)} flowers")
