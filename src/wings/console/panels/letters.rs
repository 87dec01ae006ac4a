//! Dead letters that an operator was told of, and their deletion.
use std::{collections::HashSet, fmt, time::Duration};

use super::super::markup::{Fields, encoded};
use crate::queue::{MessageId, Queue, QueueError, Receive, Settle};

/// Time for which letters are hidden that are looked through. Longer than a request takes.
const LOOK: Duration = Duration::from_secs(60);

/// Maximum number of letters in a request.
const AT_ONCE: usize = 32;

/// Maximum number of requests for letters that find none to delete.
const IN_VAIN: usize = 8;

/// The dead letters that a page told of: their number, and the ids of the first ones. It is the
/// version of an action on them.
pub(super) struct Told {
    pub(super) all: u64,
    ids: Vec<String>,
}

impl Told {
    pub(super) fn new<'a>(all: u64, ids: impl IntoIterator<Item = &'a MessageId>) -> Self {
        let ids: Vec<_> = ids.into_iter().map(MessageId::to_string).collect();
        // The count is older than the list.
        Self { all: all.max(ids.len() as u64), ids }
    }

    /// Returns what a version states; `None` if it is that of another action.
    pub(super) fn parse(version: &str) -> Option<Self> {
        let (all, ids) = version.strip_prefix("all=")?.split_once('&')?;
        Some(Self { all: all.parse().ok()?, ids: Fields::parse(ids).values().map(str::to_owned).collect() })
    }

    /// Returns `true` if the letters that are there now begin with these.
    pub(super) fn is_among(&self, now: &Self) -> bool {
        self.all <= now.all && now.ids.starts_with(&self.ids)
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "all={}", self.all)?;
        self.ids.iter().try_for_each(|id| write!(f, "&id={}", encoded(id)))
    }
}

/// Deletes the dead letters that an operator was told of, and returns their number: exactly these
/// if all were listed, and otherwise as many, in the order in which the queue delivers them. The
/// error comes with the number that was deleted before.
///
/// # Cancel safety
/// If dropped, the letters that are looked through come back after a minute.
pub(super) async fn delete(dead: &dyn Queue, told: &Told) -> Result<u64, (u64, QueueError)> {
    let listed: HashSet<_> = told.ids.iter().map(String::as_str).collect();
    let is_all = listed.len() as u64 == told.all;
    let (mut deleted, mut in_vain, mut stay) = (0, 0, Vec::new());
    let mut failed = None;
    while deleted < told.all && in_vain < IN_VAIN {
        let most = if is_all { AT_ONCE } else { AT_ONCE.min((told.all - deleted) as usize) };
        let letters = match dead.receive(Receive::new(most, LOOK)).await {
            Ok(letters) => letters,
            Err(error) => {
                failed = Some(error);
                break;
            }
        };
        if letters.is_empty() {
            break;
        }
        let (meant, others): (Vec<_>, Vec<_>) =
            letters.into_iter().partition(|letter| !is_all || listed.contains(&*letter.id.to_string()));
        stay.extend(others.into_iter().map(|letter| (letter.receipt, Settle::release(Duration::ZERO))));
        let meant: Vec<_> = meant.into_iter().map(|letter| (letter.receipt, Settle::Complete)).collect();
        match dead.settle(meant).await {
            Ok(settled) => {
                let now = settled.iter().filter(|settled| settled.is_ok()).count();
                in_vain = if now == 0 { in_vain + 1 } else { 0 };
                deleted += now as u64;
            }
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    if !stay.is_empty() {
        // If this fails they are visible in a minute.
        let _ = dead.settle(stay).await;
    }
    failed.map_or(Ok(deleted), |error| Err((deleted, error)))
}
