# What CRIU leaves where a checkpoint was broken off: its network lock, by which nothing but its own packets pass.
# https://criu.org/CLI/opt/--network-lock
for program in iptables ip6tables; do
  $program -t filter -N CRIU
  $program -t filter -I INPUT -j CRIU
  $program -t filter -I OUTPUT -j CRIU
  $program -t filter -A CRIU -m mark --mark 0xC114 -j ACCEPT
  $program -t filter -A CRIU -j DROP
done
