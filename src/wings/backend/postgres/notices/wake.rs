//! Notices without payload, sent off the write path.
use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio_postgres::types::Type;

use super::super::link::{Effect, Link, Param};
use crate::{hash::stable_hash, spawn::Spawner, sync::Mutex};

/// Notices without payload. Those of one channel that meet become one, because a notice in each
/// writing transaction would cost much of the rate of writes.
#[derive(Default)]
pub(crate) struct Wakes(Mutex<WakeState>);

#[derive(Default)]
struct WakeState {
    is_sending: bool,
    channels: BTreeSet<String>,
}

/// Minimum time between two notices. Each is a transaction with a commit of its own; those that are
/// wanted meanwhile become one.
const APART: Duration = Duration::from_millis(10);

/// Returns the advisory lock that each session holds, shared, as long as it listens on a channel.
pub(crate) fn listening(channel: &str) -> i64 {
    stable_hash(channel.as_bytes()).cast_signed()
}

impl Wakes {
    /// Sends a notice to a channel soon. It may be lost along with a connection.
    pub(crate) fn wake(self: &Arc<Self>, link: &Arc<Link>, channel: &str) {
        {
            let mut state = self.0.lock();
            state.channels.insert(channel.to_owned());
            if std::mem::replace(&mut state.is_sending, true) {
                return;
            }
        }
        let (wakes, link) = (self.clone(), link.clone());
        Spawner::Tokio.spawn(async move {
            loop {
                let channels: Vec<String> = {
                    let mut state = wakes.0.lock();
                    let channels = std::mem::take(&mut state.channels);
                    state.is_sending = !channels.is_empty();
                    channels.into_iter().collect()
                };
                if channels.is_empty() {
                    return;
                }
                // A notice is a transaction with a commit of its own, also if no session listens: those that do hold
                // this lock, shared.
                const NOTIFY: &str = "SELECT count(pg_notify(c, '')) FROM unnest($1, $2) AS u (c, listening)
                    WHERE NOT pg_try_advisory_xact_lock(listening)";
                let locks: Vec<i64> = channels.iter().map(|channel| listening(channel)).collect();
                let params: [Param<'_>; 2] = [(&channels, Type::TEXT_ARRAY), (&locks, Type::INT8_ARRAY)];
                // A notice is a hint.
                drop(link.query(Effect::Read, NOTIFY, &params).await);
                link.clock.sleep(APART).await;
            }
        });
    }
}
