# The guest's init: file systems, then the job. Words of the kernel's command line begin with "rig.".
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
mount -t sysfs sysfs /sys
mountpoint -q /dev || mount -t devtmpfs devtmpfs /dev
word() { for w in $(cat /proc/cmdline); do case $w in rig.$1=*) echo "${w#*=}"; return;; esac; done; }
out=/run/out tree=$(word tree)
mkdir -p /dev/shm /dev/pts /dev/mqueue /run/tree "$tree"
mount -t tmpfs tmpfs /dev/shm
mount -t devpts -o ptmxmode=0666 devpts /dev/pts
mount -t mqueue mqueue /dev/mqueue
[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
mount -t securityfs securityfs /sys/kernel/security
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null
mount -t bpf bpf /sys/fs/bpf 2>/dev/null
case $(word kernel) in
uml)
	ln -sfn /usr/lib/uml/modules /lib/modules
	mount -t hostfs -o "$tree" none /run/tree ;;
tcg|systemd)
	mkdir -p /run/modules && ln -sfn /run/modules /lib/modules
	mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose modules /run/modules
	mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro tree /run/tree ;;
esac
for module in overlay loop veth nf_tables nft_chain_nat nft_masq; do busybox modprobe -q $module; done
# The checkout cannot be changed from inside; what is written beside it (byte code) stays in memory.
mkdir -p /run/over && mount -t tmpfs tmpfs /run/over && mkdir /run/over/upper /run/over/work
mount -t overlay -o "lowerdir=/run/tree,upperdir=/run/over/upper,workdir=/run/over/work" overlay "$tree"
ip link set lo up
echo 0 >/proc/sys/kernel/printk_ratelimit
echo 1 >/proc/sys/kernel/printk
hostname guest
cd "$tree"
echo "rig: up after $(cut -d' ' -f1 /proc/uptime) s, $(uname -r), $(cat /sys/kernel/security/lsm)"
cat >/run/rig-job <<END
cd "$tree"
bash $out/job >$out/log 2>&1 </dev/null
echo \$? >$out/status.new && mv $out/status.new $out/status
echo "rig: done after \$(cut -d' ' -f1 /proc/uptime) s"
sync
echo o >/proc/sysrq-trigger
sleep 5
END
case $(word kernel) in
systemd)
	tr -d - </proc/sys/kernel/random/uuid >/etc/machine-id # without one it is a first boot, and asks
	mkdir -p /run/systemd/system
	cat >/run/systemd/system/rig.target <<-END
		[Unit]
		Requires=basic.target
		Wants=dbus.service rig.service
		After=basic.target
	END
	cat >/run/systemd/system/rig.service <<-END
		[Unit]
		After=basic.target dbus.service
		[Service]
		Environment=PATH=$PATH HOME=/root LANG=C.UTF-8
		ExecStart=/bin/bash /run/rig-job
		Delegate=yes
		StandardOutput=tty
	END
	exec /lib/systemd/systemd --unit=rig.target --log-target=console --default-timeout-start-sec=600 ;;
esac
. /run/rig-job
