#!/bin/sh
# A modprobe by which each family's xt extensions take long enough to load that the families meet. Like busybox's, it
# takes a module that is being loaded for loaded.
for alias; do :; done
case $alias in
ipt_* | ip6t_*)
    mkdir "/run/${alias#*_}" 2>/dev/null || exit 0
    sleep 0.2
    ;;
esac
exec /sbin/modprobe "$@"
