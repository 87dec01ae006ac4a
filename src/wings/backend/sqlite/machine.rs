//! The clocks that all processes of one machine share.
use std::time::Duration;

use crate::time::Timestamp;

/// Returns the system's wall time. Unlike [`Clock::wall`](crate::time::Clock::wall) it ignores
/// virtual time.
pub(crate) fn wall() -> Timestamp {
    Timestamp::now()
}

/// Returns the time since the machine was started, sleep included where the system counts it. It
/// never jumps, cannot be set, and restarts at zero with the machine.
///
/// A process in a Linux time namespace gets the machine's time, not that of its namespace.
pub(crate) fn since_boot() -> Duration {
    #[cfg(unix)]
    {
        #[cfg(target_os = "linux")]
        const ID: rustix::time::ClockId = rustix::time::ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        const ID: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
        let now = rustix::time::clock_gettime(ID);
        let nanos = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
        #[cfg(target_os = "linux")]
        return namespace::machine_time(nanos, namespace::offset());
        #[cfg(not(target_os = "linux"))]
        Duration::from_nanos(u64::try_from(nanos).unwrap_or_default())
    }
    // Other systems are served by the wall clock.
    #[cfg(not(unix))]
    Duration::from_millis(wall().as_millis())
}

/// Returns the identifier of this run of the machine; empty where the system has none.
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[cfg(target_os = "linux")]
mod namespace {
    use std::{sync::OnceLock, time::Duration};

    /// Returns the nanoseconds that this process's time namespace adds to the time since the
    /// machine's start; 0 outside a namespace.
    pub(super) fn offset() -> i64 {
        // A process stays in its namespace: `setns` and `unshare` move its children.
        static OFFSET: OnceLock<i64> = OnceLock::new();
        *OFFSET.get_or_init(|| {
            let link = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}")).ok();
            let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
            of(link("time") == link("time_for_children"), &offsets)
        })
    }

    /// Returns the offset of this process. The system reports the offsets of future children only:
    /// if those have another namespace, the process's own offset is unknown and taken as 0.
    fn of(is_childrens: bool, offsets: &str) -> i64 {
        if is_childrens { parse(offsets).unwrap_or_default() } else { 0 }
    }

    /// Converts the time of a namespace to the machine's time.
    pub(super) fn machine_time(nanos: i128, offset: i64) -> Duration {
        Duration::from_nanos(u64::try_from(nanos - i128::from(offset)).unwrap_or_default())
    }

    /// Parses the line of the boot-time clock: name, seconds, nanoseconds.
    fn parse(offsets: &str) -> Option<i64> {
        let mut words = offsets.lines().find(|line| line.starts_with("boottime"))?.split_whitespace().skip(1);
        let seconds: i64 = words.next()?.parse().ok()?;
        let nanos: i64 = words.next()?.parse().ok()?;
        seconds.checked_mul(1_000_000_000)?.checked_add(nanos)
    }

    #[test]
    fn the_system_s_offsets_are_parsed() {
        assert_eq!(
            parse("monotonic           0         0\nboottime         3600       500\n"),
            Some(3_600_000_000_500)
        );
        assert_eq!(parse("monotonic 5 0\nboottime -600 250000000\n"), Some(-599_750_000_000));
        assert_eq!(parse(""), None);
        assert_eq!(parse("boottime"), None);
    }

    /// Two processes read their clocks at the same moment, each in a namespace of its own.
    #[test]
    fn processes_in_different_time_namespaces_have_the_same_time() {
        let moment = 5_000_000_000_000_i128;
        for (seconds, nanos) in [(0, 0), (3_600, 0), (-600, 0), (-5_000, 999_999_999), (i64::from(i32::MAX), 1)] {
            let offsets = format!("monotonic {seconds} {nanos}\nboottime  {seconds} {nanos}\n");
            let offset = i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
            let reads = moment + offset;
            assert_eq!(machine_time(reads, of(true, &offsets)), Duration::from_nanos(moment as u64), "{offsets}");
            // The process that made the namespace for its children stays outside it.
            assert_eq!(machine_time(moment, of(false, &offsets)), Duration::from_nanos(moment as u64), "{offsets}");
        }
        // A clock cannot be before the machine's start.
        assert_eq!(machine_time(1, 2), Duration::ZERO);
    }
}
