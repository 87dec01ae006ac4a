//! The turn of one run on a server: a second run would undo the first one's work.
use std::{sync::Arc, time::Duration};

use steadfast::{
    lease::{Acquired, Lease, LeaseError},
    port::FencingToken,
    time::Clock,
};
use tokio::{runtime::Handle, task::JoinHandle};

use crate::{engine::Engine, ledger::StoreAt};

const NAME: &str = "drone_delivery";
/// Time after which the next run may begin if this one is killed. A cluster has a new leader by then.
const TERM: Duration = Duration::from_secs(15);

/// A lease that is renewed until it is dropped.
pub struct Turn {
    lease: Arc<dyn Lease>,
    holder: String,
    token: FencingToken,
    renewing: JoinHandle<()>,
}

impl Turn {
    /// Waits for the end of a killed run's term. A file has a lock of its own, and memory no second run: `None`.
    pub async fn take(at: &StoreAt, engine: &Engine) -> Result<Option<Self>, String> {
        if !matches!(at, StoreAt::Server(_) | StoreAt::Private(_)) {
            return Ok(None);
        }
        let (clock, holder) = (Clock::tokio(), format!("process {}", std::process::id()));
        let lease = engine.open().await.map_err(|error| error.to_string())?.lease();
        let latest = clock.now() + TERM + Duration::from_secs(1);
        let token = loop {
            match lease.acquire(NAME, &holder, TERM).await.map_err(|error| error.to_string())? {
                Acquired::Granted(token) => break token,
                Acquired::Held(held) if clock.now() > latest => {
                    let other = held.holder;
                    return Err(format!(
                        "another run ({other}) is at work on it: wait for its end, or take another store"
                    ));
                }
                Acquired::Held(_) => clock.sleep(TERM / 30).await,
            }
        };
        let renewing = tokio::spawn(renew(lease.clone(), holder.clone(), token));
        Ok(Some(Self { lease, holder, token, renewing }))
    }
}

/// Renews the lease for ever. Ends the process if its term is over: another run may have taken over.
async fn renew(lease: Arc<dyn Lease>, holder: String, token: FencingToken) {
    loop {
        Clock::tokio().sleep(TERM / 15).await;
        if let Err(LeaseError::NotHeld) = lease.renew(NAME, &holder, token, TERM).await {
            use std::io::Write as _;
            let why =
                format!("no renewal reached the store for {} s, so another run may have taken over", TERM.as_secs());
            let _ = writeln!(std::io::stderr().lock(), "drone_delivery: --store: {why}; run it again to finish");
            std::process::exit(1);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.renewing.abort();
        let release = self.lease.release(NAME, &self.holder, self.token);
        // Without an answer the next run waits for the end of the term.
        let _ = tokio::task::block_in_place(|| Handle::current().block_on(release));
    }
}
