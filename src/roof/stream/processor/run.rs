//! Running a member: it campaigns for the partitions of its plan, and owns those that it gets.
use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::atomic::Ordering,
    task::Poll,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::sync::{mpsc, watch};

use super::{
    Delivered, PartitionState, StreamProcessor,
    component::ProcessorCore,
    members::{Want, Wanted},
    owner::set,
};
use crate::{
    port::{PortError, PortErrorKind},
    race::{First, race},
    work::EventDisposition,
};

/// The next event of a run.
enum Next {
    /// The shutdown was asked for.
    Stopped,
    /// The watch over the members has ended.
    Managed(Result<(), PortError>),
    /// The plan has another partition.
    Wanted(Want),
    /// A partition is not held any more.
    Held(Result<(), PortError>),
}

impl StreamProcessor {
    /// Processes partitions of the topic until `shutdown` is ready, then ends the handlers that run
    /// within [`drain_timeout`](super::StreamProcessorConfig::drain_timeout), writes the last
    /// checkpoints and releases the partitions. Run a processor in any number of processes.
    ///
    /// The handler returns an [`EventDisposition`], `()`, or a `Result<(), E>`, whose error is a
    /// failed attempt. All partitions of this member are polled by this future: a handler that
    /// blocks its thread blocks them all, and their renewals.
    ///
    /// # Errors
    /// Permanent failures of the leases and the store, such as a missing permission; `Other` if a
    /// clone runs already.
    ///
    /// # Cancel safety
    /// A dropped future is a crash: its partitions are free when their terms have passed, and
    /// events that ended since the last checkpoints run again. Prefer `shutdown`.
    pub async fn run<F, H>(&self, shutdown: impl Future<Output = ()>, handler: F) -> Result<(), PortError>
    where
        F: Fn(Delivered) -> H,
        H: Future,
        H::Output: Into<EventDisposition>,
    {
        let core = &*self.0;
        let _running = core.enter()?;
        let (stop, stopped) = watch::channel(false);
        let (sender, mut wants) = mpsc::unbounded_channel::<Want>();
        let wanted = Wanted::default();
        let managed = core.manage(&wanted, &sender, stopped.clone());
        let mut manage = pin!(async {
            match race(managed, core.holdings.hear(core)).await {
                First::One(managed) => managed,
                First::Other(never) => match never {},
            }
        });
        let mut shutdown = pin!(async {
            shutdown.await;
            stop.send_replace(true);
        });
        let (mut is_managed, mut failed) = (true, None);
        let mut partitions = FuturesUnordered::new();
        loop {
            let is_stopping = *stopped.borrow();
            if is_stopping && partitions.is_empty() {
                break;
            }
            // In this order, if several are ready.
            let next = poll_fn(|cx| {
                if !is_stopping && shutdown.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Next::Stopped);
                }
                if is_managed && let Poll::Ready(managed) = manage.as_mut().poll(cx) {
                    return Poll::Ready(Next::Managed(managed));
                }
                if let Poll::Ready(Some(want)) = wants.poll_recv(cx) {
                    return Poll::Ready(Next::Wanted(want));
                }
                match partitions.poll_next_unpin(cx) {
                    Poll::Ready(Some(held)) => Poll::Ready(Next::Held(held)),
                    _ => Poll::Pending,
                }
            });
            let error = match next.await {
                Next::Stopped => None,
                Next::Managed(managed) => {
                    is_managed = false;
                    managed.err()
                }
                Next::Wanted((partition, is_wanted)) => {
                    let held = core.hold(partition, is_wanted, &handler, stopped.clone());
                    let wanted = &wanted;
                    partitions.push(async move {
                        let held = held.await;
                        wanted.lock().remove(&partition);
                        held
                    });
                    None
                }
                Next::Held(held) => held.err(),
            };
            if let Some(error) = error {
                // The other partitions are handed over.
                failed.get_or_insert(error);
                stop.send_replace(true);
            }
        }
        core.leave().await;
        failed.map_or(Ok(()), Err)
    }
}

impl ProcessorCore {
    /// Campaigns for a partition while it is wanted, and owns it.
    async fn hold<F, H>(
        &self,
        partition: u16,
        mut is_wanted: watch::Receiver<bool>,
        handler: &F,
        stopped: watch::Receiver<bool>,
    ) -> Result<(), PortError>
    where
        F: Fn(Delivered) -> H,
        H: Future,
        H::Output: Into<EventDisposition>,
    {
        // The same settings were valid before.
        let election = self.election(partition).map_err(PortError::from)?;
        let unwanted = async {
            let _ = is_wanted.wait_for(|is_wanted| !*is_wanted).await;
        };
        let leadership = match race(election.campaign(), race(unwanted, set(stopped.clone()))).await {
            First::One(leadership) => leadership?,
            First::Other(_) => return Ok(()),
        };
        let owned = Owned::new(self, partition);
        let has_failed = self.own(partition, leadership, handler, stopped.clone()).await?;
        drop(owned);
        if has_failed {
            // So that another member is elected first, and a failure that lasts makes few requests.
            let poll = self.config.load().election.poll;
            race(self.clock.sleep(poll), set(stopped)).await;
        }
        Ok(())
    }

    fn enter(&self) -> Result<impl Drop + '_, PortError> {
        struct Entered<'a>(&'a ProcessorCore);

        impl Drop for Entered<'_> {
            fn drop(&mut self) {
                // `Release`: the next run sees what this one wrote.
                self.0.is_running.store(false, Ordering::Release);
            }
        }
        if self.is_running.swap(true, Ordering::AcqRel) {
            return Err(PortError::new(PortErrorKind::Other, "this member of the group runs already"));
        }
        Ok(Entered(self))
    }
}

/// A partition in the list of this member, until it is dropped.
struct Owned<'a> {
    core: &'a ProcessorCore,
    partition: u16,
}

impl<'a> Owned<'a> {
    fn new(core: &'a ProcessorCore, partition: u16) -> Self {
        core.holdings.add(PartitionState::new(partition, Some(core.member.clone())));
        Self { core, partition }
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        self.core.holdings.remove(self.partition);
    }
}
