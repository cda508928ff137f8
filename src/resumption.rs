//! Notices that the machine did not simply keep running: it was suspended, or resumed from a snapshot of a
//! running machine, memory included.

use std::{fs, os::fd::OwnedFd, sync::OnceLock, time::Duration};

use covault_mpc::node::ResumeDetector;
use parking_lot::Mutex;
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SocketFlags, SocketType, bind,
        netlink::{KOBJECT_UEVENT, SocketAddrNetlink},
        recvfrom, socket_with,
        sockopt::set_socket_recv_buffer_size,
    },
    time::{ClockId, Timespec, clock_gettime},
};

/// Changes with each start of the kernel: another one, and the process was moved.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Where kernels show that their virtual machine has a generation id.
const GENERATION: [&str; 2] = [
    "/sys/bus/platform/drivers/vmgenid",
    "/sys/bus/acpi/drivers/vmgenid",
];
/// How often the boot id is read: that opens a file.
const READ_EVERY: Duration = Duration::from_millis(100);
/// How much later the clock that counts suspends may be; both tick alike otherwise.
const SLACK: Duration = Duration::from_secs(1);
/// Events that are read at a time, at most.
const MOST_EVENTS: usize = 256;
/// Room for events between two looks; the system may allow less.
const SOCKET_BUFFER_BYTES: usize = 1 << 20;
/// The group of the kernel's own events.
const KERNEL: u32 = 1;

/// What is compared with the start of the process.
pub struct MachineWatch {
    boot_id: Option<String>,
    /// By how much the clock that counts suspends was ahead of the one that does not, at most.
    suspended_for: Duration,
    /// The kernel's events: it announces a new generation of a virtual machine.
    events: Option<OwnedFd>,
    read: Mutex<Duration>,
    noticed: OnceLock<String>,
}

impl MachineWatch {
    /// Begins, and says in the log what this machine shows.
    pub fn start() -> Self {
        let before = monotonic();
        let suspended_for = clock(ClockId::Boottime).saturating_sub(before);
        let boot_id = fs::read_to_string(BOOT_ID).ok();
        let events = listen(KERNEL).ok();
        let generation = events.is_some() && shows_generation();
        tracing::info!(
            boot_id = boot_id.is_some(),
            suspend = true,
            generation,
            "this node stops when it notices that its machine was resumed"
        );
        Self {
            boot_id,
            suspended_for,
            events,
            read: Mutex::new(before),
            noticed: OnceLock::new(),
        }
    }

    fn check(&self) -> Option<String> {
        let boot = clock(ClockId::Boottime);
        // Read afterwards: a pause in between makes the gap smaller, never larger.
        let now = monotonic();
        if suspended(self.suspended_for, boot, now) {
            return Some("it was suspended".into());
        }
        match self.events.as_ref().map(read_events) {
            Some(KernelEvent::NewGeneration) => {
                return Some("its virtual machine was resumed from a snapshot".into());
            }
            // Where no virtual machine has a generation id, none of them was about it.
            Some(KernelEvent::Lost) if shows_generation() => {
                return Some(
                    "its kernel had more events than could be kept, and one of those that are lost may \
                     have said that it was resumed from a snapshot"
                        .into(),
                );
            }
            Some(KernelEvent::Lost | KernelEvent::Nothing) | None => {}
        }
        let mut read = self.read.lock();
        if now.saturating_sub(*read) >= READ_EVERY {
            *read = now;
            drop(read);
            let known = self.boot_id.as_ref()?;
            if fs::read_to_string(BOOT_ID).is_ok_and(|id| id != *known) {
                return Some("the process was moved to another start of a kernel".into());
            }
        }
        None
    }
}

impl ResumeDetector for MachineWatch {
    fn noticed(&self) -> Option<String> {
        if let Some(known) = self.noticed.get() {
            return Some(known.clone());
        }
        let what = self.check()?;
        Some(self.noticed.get_or_init(|| what).clone())
    }
}

/// Whether the clocks are further apart than they were.
fn suspended(suspended_for: Duration, boot: Duration, now: Duration) -> bool {
    boot.saturating_sub(now) > suspended_for.saturating_add(SLACK)
}

fn clock(id: ClockId) -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(id);
    let seconds = Duration::from_secs(u64::try_from(tv_sec).unwrap_or_default());
    seconds.saturating_add(Duration::from_nanos(
        u64::try_from(tv_nsec).unwrap_or_default(),
    ))
}

fn monotonic() -> Duration {
    clock(ClockId::Monotonic)
}

/// The kernel's own events, for which nobody needs a privilege.
fn listen(group: u32) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        flags,
        Some(KOBJECT_UEVENT),
    )?;
    // With less room, too, there is enough as a rule.
    let _ = set_socket_recv_buffer_size(&socket, SOCKET_BUFFER_BYTES);
    bind(&socket, &SocketAddrNetlink::new(0, group))?;
    Ok(socket)
}

/// What the events say that wait.
#[derive(Debug, PartialEq, Eq)]
enum KernelEvent {
    Nothing,
    /// The machine is another one now.
    NewGeneration,
    /// There were more than there was room for.
    Lost,
}

fn read_events(events: &OwnedFd) -> KernelEvent {
    let mut buffer = [0; 8192];
    for _ in 0..MOST_EVENTS {
        let (length, _, sender) = match recvfrom(events, &mut buffer, RecvFlags::empty()) {
            Ok(event) => event,
            Err(Errno::NOBUFS) => return KernelEvent::Lost,
            Err(_) => return KernelEvent::Nothing,
        };
        let sender = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
        let of_kernel = sender.is_some_and(|sender| sender.pid() == 0);
        if of_kernel && buffer.get(..length).is_some_and(says_new_generation) {
            return KernelEvent::NewGeneration;
        }
    }
    KernelEvent::Nothing
}

/// Whether this kernel tells of generations of a virtual machine.
fn shows_generation() -> bool {
    let mut paths = GENERATION.iter();
    paths.any(|path| fs::exists(path).is_ok_and(|it| it))
}

fn says_new_generation(event: &[u8]) -> bool {
    event
        .split(|byte| *byte == 0)
        .any(|part| part == b"NEW_VMGENID=1")
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use rustix::net::SendFlags;

    use super::*;

    #[test]
    fn watch__should_notice_nothing_on_a_machine_that_runs_on() {
        let watch = MachineWatch::start();
        for _ in 0..1_000 {
            assert_eq!(watch.noticed(), None);
        }
    }

    #[test]
    fn events__should_be_known_to_be_lost_when_there_were_too_many() {
        // A group that nobody else listens to.
        let group = 1 << 30;
        let events = listen(group).unwrap();
        set_socket_recv_buffer_size(&events, 1).unwrap();
        assert_eq!(read_events(&events), KernelEvent::Nothing);
        let sender = listen(0).unwrap();
        let to = SocketAddrNetlink::new(0, group);
        for _ in 0..1_000 {
            match rustix::net::sendto(&sender, b"NEW_VMGENID=1\0", SendFlags::empty(), &to) {
                Err(Errno::PERM | Errno::ACCESS) => return eprintln!("only root sends events"),
                // Of who listens and has no room.
                Err(Errno::NOBUFS) | Ok(_) => {}
                Err(error) => panic!("{error}"),
            }
        }
        // And what is not the kernel's says nothing.
        assert_eq!(read_events(&events), KernelEvent::Lost);
        assert_eq!(read_events(&events), KernelEvent::Nothing);
    }

    #[test]
    fn watch__should_notice_a_suspend_another_boot_and_a_new_generation_and_remember_it() {
        let at = Duration::from_secs;
        assert!(suspended(at(5), at(1_000), at(990)));
        for (boot, now) in [(1_000, 995), (1_000, 994), (1_000, 999), (1_000, 2_000)] {
            assert!(!suspended(at(5), at(boot), at(now)), "{boot} {now}");
        }

        let mut moved = MachineWatch::start();
        moved.boot_id = Some("another".into());
        *moved.read.lock() = Duration::ZERO;
        let noticed = moved.noticed();
        assert!(noticed.as_ref().is_some_and(|it| it.contains("moved")));
        moved.boot_id = None;
        assert_eq!(moved.noticed(), noticed, "what was noticed stays so");

        // As Linux 6.8 and later write it.
        let event = b"change@/devices/platform/VMGENCTR:00\0ACTION=change\0\
                      DEVPATH=/devices/platform/VMGENCTR:00\0SUBSYSTEM=platform\0NEW_VMGENID=1\0SEQNUM=9\0";
        assert!(says_new_generation(event));
        assert!(!says_new_generation(
            b"add@/devices/x\0ACTION=add\0OLD_NEW_VMGENID=1\0"
        ));
    }
}
