//! Settlements that are made beside the tasks: those that failed, and those of released messages.
use std::collections::VecDeque;

use tokio::sync::Notify;

use crate::{
    queue_listener::{run::state::RunState, settle::PendingSettlement},
    sync::Mutex,
};

/// Settlements of one source that wait to be sent.
#[derive(Default)]
pub(crate) struct Outbox {
    settlements: Mutex<VecDeque<PendingSettlement>>,
    came: Notify,
}

impl RunState {
    /// Hands settlements to the future that settles beside the tasks.
    pub(crate) fn send_out(&self, settlements: impl IntoIterator<Item = PendingSettlement>) {
        for settlement in settlements {
            self.intake.sent_out(1);
            let outbox = &self.outboxes[settlement.source];
            outbox.settlements.lock().push_back(settlement);
            self.intake.woke();
            outbox.came.notify_one();
        }
    }

    /// Waits for settlements that were sent out, and returns those of one request.
    pub(crate) async fn outgoing(&self, source: usize) -> Vec<PendingSettlement> {
        let (outbox, most) = (&self.outboxes[source], self.inner.sources[source].most);
        loop {
            {
                let mut settlements = outbox.settlements.lock();
                if !settlements.is_empty() {
                    let n = settlements.len().min(most);
                    return settlements.drain(..n).collect();
                }
            }
            outbox.came.notified().await;
        }
    }

    /// Records settlements that were made or given up.
    pub(crate) fn settled(&self, n: usize) {
        self.intake.settled(n);
        self.check_idle();
    }
}
