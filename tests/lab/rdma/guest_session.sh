#!/bin/bash
# In the guest, with the machine's file system as root: makes the two RDMA devices, then becomes the
# command. Both ends of the veth pair live in one network namespace, so three things are needed for
# packets to cross it: sources that are this host's own addresses are accepted, no reverse-path
# filter, and neighbours that are written down (nobody answers ARP for an address of its own).
make_devices() {
  set -e
  export PATH=$PATH:/usr/sbin:/sbin
  hostname rdma-lab
  ip link set lo up
  local side
  for side in all default; do
    echo 1 > /proc/sys/net/ipv4/conf/$side/accept_local
    echo 0 > /proc/sys/net/ipv4/conf/$side/rp_filter
    echo 0 > /proc/sys/net/ipv6/conf/$side/accept_dad
  done
  ip link add veth0 address 02:4d:45:50:00:01 mtu "$MTU" type veth \
    peer name veth1 address 02:4d:45:50:00:02 mtu "$MTU"
  for side in 0 1; do
    ip link set "veth$side" up
    ip address add "10.77.0.$((side + 1))/24" dev "veth$side"
    ip neighbour replace "10.77.0.$((2 - side))" lladdr "02:4d:45:50:00:0$((2 - side))" \
      dev "veth$side" nud permanent
  done
  for side in 0 1; do rdma link add "rxe$side" type rxe netdev "veth$side"; done
}

if ! problems=$(make_devices 2>&1); then
  echo "rdma lab: the guest's RDMA devices could not be made: $problems" >&2
  exit 125
fi
exec /bin/bash /run/lab/command
