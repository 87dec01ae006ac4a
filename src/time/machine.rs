//! The clock that all processes of one machine share, and that no hand sets.
use std::time::Duration;

/// Time since the machine was started, sleep included where the system counts it. It never jumps, and starts anew with the machine.
pub(crate) fn since_boot() -> Duration {
    #[cfg(unix)]
    {
        #[cfg(target_os = "linux")]
        const ID: rustix::time::ClockId = rustix::time::ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        const ID: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
        let now = rustix::time::clock_gettime(ID);
        let (seconds, nanos) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
        Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
    }
    // Elsewhere the wall clock has to do.
    #[cfg(not(unix))]
    Duration::from_millis(super::Timestamp::now().as_millis())
}

/// Names this run of the machine; empty where the system does not say.
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
