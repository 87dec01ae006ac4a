//! Deletion of what has expired, a few rows at a time, by handles that write.
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use tokio_postgres::types::Type;

use super::link::{Effect, Link};
use crate::spawn::Spawner;

/// Sweeps after each so many rows that this handle wrote. The fields are counts and a flag that
/// publish nothing: a sweep that comes twice or late harms nothing.
pub(crate) struct Sweeper {
    sql: String,
    written: AtomicU64,
    is_running: AtomicBool,
}

/// Number of written rows after which a handle sweeps.
const EVERY: u64 = 64;
/// Rows that one statement deletes: more than were written since, so that their number falls.
const MOST: i32 = 256;
/// Statements of one sweep.
const STEPS: u32 = 16;

impl Sweeper {
    /// Creates a sweeper with a statement that deletes up to `$1` rows, and returns their number.
    pub(crate) fn new(sql: String) -> Arc<Self> {
        Arc::new(Self { sql, written: AtomicU64::new(0), is_running: AtomicBool::new(false) })
    }

    /// Counts written rows, and sweeps in a task of its own if that is due.
    pub(crate) fn wrote(self: &Arc<Self>, link: &Arc<Link>, rows: usize) {
        let written = self.written.fetch_add(rows as u64, Ordering::Relaxed) + rows as u64;
        if written < EVERY || self.is_running.swap(true, Ordering::Relaxed) {
            return;
        }
        self.written.store(0, Ordering::Relaxed);
        let (sweeper, link) = (self.clone(), link.clone());
        Spawner::Tokio.spawn(async move {
            for _ in 0..STEPS {
                // After an error the next sweep tries again.
                let Ok(rows) = link.query(Effect::Write, &sweeper.sql, &[(&MOST, Type::INT4)]).await else { break };
                let swept: i32 = rows.first().and_then(|row| link.column(row, 0).ok()).unwrap_or(0);
                if swept < MOST {
                    break;
                }
            }
            sweeper.is_running.store(false, Ordering::Relaxed);
        });
    }
}
