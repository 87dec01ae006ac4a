//! The public suites with users of NATS who have the rights for one prefix each, and no others.
use std::{
    fmt::Write as _,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use steadfast::{
    backend::nats::{Nats, NatsConfig},
    lease::Lease,
    notify::Notifier,
    port::BoxFuture,
    queue::Queue,
    store::Store,
    testing::conformance::Fixture,
};

use crate::server;

/// More than the suites have cases.
const USERS: usize = 400;

fn prefix(user: usize) -> String {
    format!("p{user}")
}

/// Returns a server whose user `uN` may use the prefix `pN`.
fn server() -> &'static server::Nats {
    static SHARED: OnceLock<server::Nats> = OnceLock::new();
    SHARED.get_or_init(|| {
        let mut users = String::new();
        for user in 0..USERS {
            let of = NatsConfig::at("nats://host").prefix(prefix(user));
            let rights = Nats::permissions(&of, &["jobs"]).unwrap();
            let _ = writeln!(users, "{{ user: u{user}\n password: x\n permissions: {rights} }}");
        }
        server::Nats::with(&format!("authorization {{ users: [{users}] }}\n"))
    })
}

/// Opens a port of a handle.
type Open<P> = for<'a> fn(&'a Nats) -> BoxFuture<'a, Arc<P>>;

async fn limited<P: ?Sized + 'static>(open: Open<P>) -> Fixture<P> {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    let user = LAST.fetch_add(1, Relaxed);
    assert!(user < USERS);
    let handles = async move || {
        let url = server().url().replace("//", &format!("//u{user}:x@"));
        let config = NatsConfig::at(url).prefix(prefix(user));
        let (one, other) = (Nats::connect(config.clone()).await.unwrap(), Nats::connect(config).await.unwrap());
        Fixture::new(open(&one).await).with_second_handle(open(&other).await)
    };
    handles().await.with_restart(handles)
}

mod store {
    use super::*;

    steadfast::store_conformance!(async || limited::<dyn Store>(|nats| Box::pin(async {
        Arc::new(nats.store()) as _
    }))
    .await);
}

mod lease {
    use super::*;

    steadfast::lease_conformance!(async || limited::<dyn Lease>(|nats| Box::pin(async {
        Arc::new(nats.lease()) as _
    }))
    .await);
}

mod notifier {
    use super::*;

    steadfast::notifier_conformance!(async || {
        limited::<dyn Notifier>(|nats| Box::pin(async { Arc::new(nats.notifier()) as _ })).await
    });
}

mod queue {
    use super::*;

    steadfast::queue_conformance!(async || {
        limited::<dyn Queue>(|nats| Box::pin(async { Arc::new(nats.queue("jobs").await.unwrap()) as _ })).await
    });
}
