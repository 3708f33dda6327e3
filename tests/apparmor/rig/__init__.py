"""Kernels that have what this machine's may lack: booted in seconds, with the checkout inside.

`boot.run(kernel, …)` boots one and runs a job in it. A kernel is a `boot.Kernel`: `uml.KERNEL` is Debian's
user-mode-linux (AppArmor, cgroup v2; no BTF), `tcg.KERNEL` Debian's own kernel in QEMU without acceleration
(AppArmor, BPF LSM and BTF together).
"""
