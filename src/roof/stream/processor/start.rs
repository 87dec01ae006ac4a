//! Starting the events of a partition: in the order of keys; after repeated crashes, one at a time.
use std::{future::Future, task::Context};

use super::{
    Delivered,
    checkpoint::Suspect,
    worker::{Running, Worker},
};
use crate::{
    queue_listener::{Caught, Disposition},
    time::Instant,
};

impl<'a, F, H> Worker<'a, F, H>
where
    F: Fn(Delivered) -> H,
    H: Future,
    H::Output: Into<Disposition>,
{
    /// Starts the events that are ready.
    pub(super) fn start(&mut self, cx: &mut Context<'_>, now: Instant, starts: &mut usize) -> bool {
        let before = *starts;
        let most = self.core.config.load().max_in_flight as usize;
        while *starts > 0 && self.halted.is_none() && self.lanes.running() < most {
            if !self.may_start() {
                break;
            }
            let Some((position, recorded, failures)) = self.lanes.start() else { break };
            *starts -= 1;
            let recorded = recorded.clone();
            if self.is_condemned(position) {
                let crashes = self.checkpoint.suspect.map_or(0, |suspect| suspect.crashes);
                self.bury(position, format!("its process died {crashes} times while it ran"));
                continue;
            }
            let (attempt, token, cancel) = (failures.saturating_add(1), self.token, self.cancelled.clone());
            let delivered = Delivered { recorded, attempt, token, cancel };
            let mut future = self.spare.pop().unwrap_or_else(|| Box::pin(Caught::new()));
            let handler = self.handler;
            match future.as_mut().begin(cx, || handler(delivered)) {
                Some(output) => {
                    self.spare.push(future);
                    self.settle(position, output.map(Into::into), now);
                }
                None => self.running.push(Running { position, future: Some(future) }),
            }
        }
        *starts < before
    }

    /// Returns `true` if the next event may start. In the careful mode it must be recorded before,
    /// and alone.
    fn may_start(&mut self) -> bool {
        if self.lanes.finished().watermark() >= self.checkpoint.careful_until {
            return true;
        }
        let Some(next) = self.lanes.peek() else { return false };
        // A delayed event that has killed its process holds up the others, so that none takes its place in
        // the record.
        let is_suspect = self.checkpoint.suspect.is_some_and(|suspect| suspect.crashes > 0 && suspect.position != next);
        if self.lanes.running() > 0 || is_suspect && self.lanes.next_due().is_some() {
            return false;
        }
        if self.is_condemned(next) {
            return true;
        }
        if self.armed.take_if(|armed| *armed == next).is_some() {
            return true;
        }
        if self.arming.is_none() && self.writing.is_none() {
            let crashes = self.checkpoint.suspect.filter(|suspect| suspect.position == next);
            let crashes = crashes.map_or(0, |suspect| suspect.crashes);
            self.checkpoint.suspect = Some(Suspect { position: next, crashes, is_running: true });
            (self.armed, self.arming) = (None, Some(next));
            self.is_write_forced = true;
        }
        false
    }

    /// Returns `true` for an event that has killed its process too often.
    fn is_condemned(&self, position: u64) -> bool {
        let most = self.core.config.load().max_crashes;
        self.checkpoint.suspect.is_some_and(|suspect| suspect.position == position && suspect.crashes >= most)
    }
}
