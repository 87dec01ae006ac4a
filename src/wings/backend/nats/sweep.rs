//! Removal of marks of deleted records, on a server that does not do it by itself.
use std::collections::VecDeque;

use super::{
    api::{DELETE_FAILED, DeleteMessage, GetMessage, NO_MESSAGE, SEQUENCE_NOT_FOUND},
    link::Effect,
    store::{DELETED, FENCE, NatsStore, REMAINS},
};
use crate::{sync::Mutex, time::Instant};

/// The marks of records that this handle deleted, oldest first.
pub(super) type Deleted = Mutex<VecDeque<(Instant, u64)>>;

impl NatsStore {
    /// Remembers a mark that the server does not remove.
    pub(super) fn note_mark(&self, number: u64) {
        self.core.deleted.lock().push_back((self.core.link.base().clock.now(), number));
    }

    /// Removes up to two marks of records that were deleted a while ago.
    pub(super) async fn sweep(&self) {
        let now = self.core.link.base().clock.now();
        let due: Vec<u64> = {
            let mut deleted = self.core.deleted.lock();
            let due = deleted.iter().take(2).take_while(|(at, _)| now - *at >= REMAINS).count();
            deleted.drain(..due).map(|(_, number)| number).collect()
        };
        for seq in due {
            // A server that has lost its last writes gives their numbers to others: look first.
            let is_mark = match self.message(GetMessage { seq: Some(seq), ..GetMessage::default() }).await {
                Ok(found) => {
                    found.is_some_and(|found| found.header(DELETED).is_some() && found.header(FENCE).is_none())
                }
                Err(_) => {
                    self.core.deleted.lock().push_back((now, seq));
                    continue;
                }
            };
            if !is_mark {
                continue;
            }
            let call = format!("STREAM.MSG.DELETE.{}", self.core.stream.name);
            let request = DeleteMessage { seq, no_erase: true };
            let done = self.core.link.api::<serde::de::IgnoredAny>(&call, &request, Effect::Writes).await;
            // Replaced meanwhile, it is gone.
            let is_gone = matches!(&done, Ok(Ok(_)))
                || matches!(&done, Ok(Err(error)) if matches!(error.err_code, NO_MESSAGE | DELETE_FAILED | SEQUENCE_NOT_FOUND));
            if !is_gone {
                self.core.deleted.lock().push_back((now, seq));
            }
        }
    }
}
