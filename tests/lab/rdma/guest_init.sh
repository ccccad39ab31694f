#!/bin/busybox sh
# Process 1 of the RDMA lab's guest: mounts the machine's file system under an overlay, loads the
# modules and hands over to session.sh in it. However it ends, it powers the guest off; the port
# "result" of the host hears how.
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin:/sbin:/usr/sbin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sysfs /sys

report() { [ -z "$result_port" ] || echo "$*" > "$result_port"; }
give_up() {
  echo "rdma lab: $*" > /dev/console
  report "could not start: $*"
  poweroff -f
  sleep 60
}
load_modules() {
  for file in /modules/$1/*; do
    # Some are built into the kernel or loaded already: what counts is whether later steps work.
    insmod "$file" 2> /insmod.log || cat /insmod.log > /dev/console
  done
}
find_port() {
  for port in /sys/class/virtio-ports/*; do
    [ "$(cat "$port/name")" = "$1" ] && echo "/dev/${port##*/}"
  done
}

load_modules boot
result_port=$(find_port result)
[ -n "$result_port" ] || give_up "no virtio ports"
# A port can be opened by one process at a time; this keeps it open for all of them.
exec 9> "$result_port"
report() { echo "$*" >&9; }
report "up after $(cut -d' ' -f1 /proc/uptime) s"
. /job/settings

nine_p=trans=virtio,version=9p2000.L,msize=262144
mount -t 9p -o "$nine_p,ro,cache=loose" host /host || give_up "the host's files cannot be mounted"
mount -t tmpfs -o mode=755,size=70% memory /memory
mkdir /memory/changes /memory/work
mount -t overlay -o lowerdir=/host,upperdir=/memory/changes,workdir=/memory/work overlay /root ||
  give_up "no overlay"
for place in proc sys dev run tmp; do mkdir -p "/root/$place"; done
mount -t proc proc /root/proc
mount -t sysfs sysfs /root/sys
mount -t devtmpfs dev /root/dev
mkdir -p /root/dev/pts /root/dev/shm
mount -t devpts devpts /root/dev/pts
mount -t tmpfs -o mode=1777 shm /root/dev/shm
mount -t tmpfs -o mode=755 run /root/run
[ -e /root/dev/fd ] || ln -s /proc/self/fd /root/dev/fd
for stream in 0:stdin 1:stdout 2:stderr; do
  [ -e "/root/dev/${stream#*:}" ] || ln -s "/proc/self/fd/${stream%%:*}" "/root/dev/${stream#*:}"
done
if [ -n "$OUTPUT" ]; then
  mkdir -p "/root$OUTPUT"
  mount -t 9p -o "$nine_p,cache=none" output "/root$OUTPUT" || give_up "no output folder"
fi

load_modules rdma
mkdir /root/run/lab
cp /job/command /session.sh /root/run/lab/

# Programs may open /dev/stdout again, which a port does not allow: pipes in between.
mkfifo /root/run/lab/stdout /root/run/lab/stderr
cat < /root/run/lab/stdout > "$(find_port stdout)" &
out=$!
cat < /root/run/lab/stderr > "$(find_port stderr)" &
err=$!
MTU=$MTU setsid chroot /root /bin/bash /run/lab/session.sh < /dev/null \
  > /root/run/lab/stdout 2> /root/run/lab/stderr
code=$?
report "done after $(cut -d' ' -f1 /proc/uptime) s"
# Something left in the background may hold the pipes for ever.
(sleep 3; kill $out $err) 2> /dev/null &
wait $out
wait $err
if [ -n "$OUTPUT" ]; then umount "/root$OUTPUT"; fi
sync
report "exit $code"
poweroff -f
sleep 60
