//! The file's own time in microseconds: all its processes share it, and it never goes back.
use rusqlite::{Connection, OptionalExtension};

use super::machine;
use crate::time::{Clock, Timestamp};

/// Source of the file's time.
pub(super) enum FileTime {
    /// The machine's clock since boot, and the offset to add to it.
    Machine { offset: i64 },
    /// A clock that was passed in, for tests.
    Given(Clock),
}

/// Maximum advance of the file's time over the last recorded one when the machine stops.
const UNRECORDED: i64 = 2_000_000;

/// Minimum interval between two records of the time.
pub(super) const RECORD_EVERY: i64 = 1_000_000;

impl FileTime {
    /// Reads the machine's time for this file. Called within the transaction that opens it.
    pub(super) fn of_machine(connection: &Connection) -> rusqlite::Result<Self> {
        let (boot, since_boot) = (machine::boot_id(), micros(machine::since_boot()));
        let text = |name: &str| -> rusqlite::Result<Option<String>> {
            let found = connection.query_row("SELECT value FROM meta WHERE name = ?", [name], |row| row.get(0));
            found.optional()
        };
        let number = |name: &str| Ok::<_, rusqlite::Error>(text(name)?.and_then(|text| text.parse::<i64>().ok()));
        let wall = wall();
        let (last, last_wall) = (number("time")?, number("wall")?);
        let offset = match (number("offset")?, text("boot")?, last) {
            // Same boot of the machine. If the system does not identify the boot: unless the clock
            // restarted.
            (Some(offset), Some(same), last)
                if same == boot && last.is_none_or(|last| since_boot.saturating_add(offset) >= last) =>
            {
                offset
            }
            (_, _, last) => {
                let away = last_wall.map_or(0, |then| wall.saturating_sub(then).max(0));
                let now = last.unwrap_or(0).saturating_add(away).saturating_add(UNRECORDED);
                now.saturating_sub(since_boot)
            }
        };
        let time = Self::Machine { offset };
        let mut put = connection.prepare("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)")?;
        put.execute(["boot", &boot])?;
        put.execute(["offset", &offset.to_string()])?;
        time.record(connection, time.now())?;
        Ok(time)
    }

    /// Returns the file's time.
    pub(super) fn now(&self) -> i64 {
        match self {
            Self::Machine { offset } => micros(machine::since_boot()).saturating_add(*offset),
            Self::Given(clock) => i64::try_from(clock.now().as_nanos() / 1000).unwrap_or(i64::MAX),
        }
    }

    /// Returns the current wall time, for `sent_at`.
    pub(super) fn wall(&self) -> Timestamp {
        match self {
            Self::Machine { .. } => machine::wall(),
            Self::Given(clock) => clock.wall(),
        }
    }

    /// Records the current time, for the next boot of the machine.
    pub(super) fn record(&self, connection: &Connection, now: i64) -> rusqlite::Result<()> {
        if matches!(self, Self::Given(_)) {
            return Ok(());
        }
        let wall = wall();
        let mut put = connection.prepare_cached("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)")?;
        put.execute(["time", &now.to_string()])?;
        put.execute(["wall", &wall.to_string()])?;
        Ok(())
    }
}

/// Returns the wall clock's time in microseconds.
pub(super) fn wall() -> i64 {
    i64::try_from(machine::wall().as_millis()).unwrap_or(i64::MAX).saturating_mul(1000)
}

/// Returns a duration in microseconds, at most 292,000 years.
pub(super) fn micros(d: std::time::Duration) -> i64 {
    i64::try_from(d.as_micros()).unwrap_or(i64::MAX)
}
