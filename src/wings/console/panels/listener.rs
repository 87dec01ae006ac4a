//! Queue listeners.
use super::super::{
    panel::{Look, Order, Panel, Source, View, ready, unknown},
    readout::{Note, ReadOut, Trouble},
    settings::{self, Settings},
};
use crate::{
    port::BoxFuture,
    queue_listener::{QueueListener, QueueListenerConfig},
};

impl Panel for QueueListener {
    fn view(&self) -> View {
        View(Box::new(self.clone()))
    }
}

impl Source for QueueListener {
    fn kind(&self) -> &'static str {
        "queue listener"
    }

    fn settings(&self, _: Option<&str>) -> Option<Box<dyn Settings + '_>> {
        settings::of::<QueueListenerConfig, _>(self)
    }

    fn read<'a>(&'a self, _: &'a Look) -> BoxFuture<'a, Result<ReadOut, String>> {
        let now = self.state();
        let mut out = match (now.paused, now.tasks) {
            (true, _) if now.paused_by_itself => {
                ReadOut::new("paused").trouble(Trouble::Stuck, "an operator paused it: it takes no message")
            }
            (true, _) => ReadOut::new("paused").trouble(Trouble::Stuck, "the control of its queues paused all of them"),
            (false, 0) => ReadOut::new("not running").trouble(Trouble::Stuck, "no task runs: it takes no message"),
            (false, _) => ReadOut::new("running"),
        };
        out = out
            .fact("tasks", now.tasks)
            .level("in flight", now.in_flight as f64)
            .total("handled", "handled in a minute", now.handled)
            .total("failed attempts", "failed in a minute", now.failed)
            .fact("dead-lettered", now.dead_lettered)
            .fact("received", now.received)
            .fact("buffered", now.buffered)
            .fact("leases lost", now.leases_lost)
            .fact("duplicates", now.duplicates)
            .fact("requests to the queue", now.requests)
            .fact("paused queues", now.paused_queues);
        out = match now.paused_by_itself {
            true => {
                let effect = "This process takes messages again, unless the control of a queue paused that queue.";
                out.action("resume", "Resume", effect, true, Note::None)
            }
            false => {
                let effect = format!(
                    "This process takes no more messages. {} handlers that run go on; other processes go on, too.",
                    now.in_flight
                );
                out.action("pause", "Pause", effect, false, Note::None)
            }
        };
        ready(Ok(out))
    }

    fn act<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Result<String, String>> {
        match order.action.as_str() {
            "pause" => self.pause(),
            "resume" => self.resume(),
            _ => return ready(unknown(order)),
        }
        let now = self.state();
        ready(match (now.paused_by_itself, now.paused) {
            (true, _) => Ok("The listener is paused.".to_owned()),
            (false, false) => Ok("The listener takes messages.".to_owned()),
            (false, true) => Err("the control of its queues keeps it paused".to_owned()),
        })
    }
}
