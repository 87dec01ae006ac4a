//! The connection that waits for notices (`LISTEN`), and its subscribers.
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use tokio_postgres::{AsyncMessage, types::Type};

use super::super::{
    PostgresConfig,
    link::Link,
    link::connection::{Connection, Connector},
    link::direct::is_direct,
    link::failure::{Effect, failure, timed_out},
    link::pool::RECONNECT,
};
use super::wake::listening;
use crate::{
    backend::{ConnectionEvent, ConnectionRole, common::mailbox::Mailbox},
    backoff::{Backoff, BackoffConfig},
    entropy::Entropy,
    notify::Notice,
    observe::Events,
    port::{PortError, PortErrorKind, within},
    race::race,
    spawn::Spawner,
    sync::Mutex,
};

/// The subscribers of a handle. Its connection is opened by the first one, and restored when it is
/// lost.
pub(crate) struct Listener(Arc<ListenerCore>);

struct ListenerCore {
    connector: Connector,
    limit: Duration,
    state: Mutex<ListenState>,
    /// Tells the task that channels were added or removed, or that the handle is gone.
    changed: Arc<Notify>,
    events: Events<ConnectionEvent>,
    entropy: Entropy,
}

#[derive(Default)]
struct ListenState {
    is_running: bool,
    /// The failure of the last attempt, while the task tries again.
    down: Option<PortError>,
    channels: HashMap<String, Channel>,
    /// Channels without subscribers, on which the connection still listens.
    unused: BTreeSet<String>,
}

#[derive(Default)]
struct Channel {
    is_listening: bool,
    mailboxes: Vec<Arc<Mailbox>>,
    /// Subscribers that wait until the connection listens.
    waiting: Vec<oneshot::Sender<Result<(), PortError>>>,
}

/// A subscription to one channel. Dropping it ends the subscription.
pub(crate) struct Subscription {
    core: Weak<ListenerCore>,
    channel: String,
    mailbox: Arc<Mailbox>,
}

/// Maximum number and bytes of the unread notices of a subscription. Beyond it they become one gap.
const UNREAD: usize = 10_000;
const UNREAD_BYTES: usize = 64 << 20;

/// Time within which a notice passes a pooler that passes notices on.
const PATIENCE: Duration = Duration::from_secs(1);

/// Interval at which an idle connection is probed.
const PROBE: Duration = Duration::from_secs(60);

impl Listener {
    pub(crate) fn new(
        config: &PostgresConfig,
        clock: &crate::time::Clock,
        events: Events<ConnectionEvent>,
    ) -> Result<Self, PortError> {
        Ok(Self(Arc::new(ListenerCore {
            connector: Connector::new(config, true, clock)?,
            limit: config.request_timeout,
            state: Mutex::default(),
            changed: Arc::default(),
            events,
            entropy: Entropy::default(),
        })))
    }

    /// Finds out whether the connection of notices gets one. Behind a pooler that shares sessions
    /// it gets none, nor in another database.
    pub(crate) async fn hears(&self, link: &Link) -> Result<bool, PortError> {
        let ListenerCore { connector, limit, entropy, .. } = &*self.0;
        let (channel, heard) = (format!("{}_p{:016x}", link.channels(), entropy.next_u64()), Arc::new(Notify::new()));
        let (hears, told) = (heard.clone(), channel.clone());
        let on_message = move |message| {
            if matches!(message, AsyncMessage::Notification(notice) if notice.channel() == told) {
                hears.notify_one();
            }
        };
        // The connection that stays tells of its weaknesses.
        let connection = connector.open(Some(Box::new(on_message)), drop).await?;
        // It is the connection's own session unless a pooler is between. One in session mode passes notices on.
        let patience = if is_direct(&connection.client).await { *limit } else { PATIENCE.min(*limit) };
        self.0.execute(&connection, &format!("LISTEN \"{channel}\"")).await?;
        // From here on the connection is idle: with a request it might get the notice in the session of another one.
        link.query(Effect::Read, "SELECT pg_notify($1, '')", &[(&channel, Type::TEXT)]).await?;
        let heard = within(&connector.clock, patience, heard.notified()).await.is_some();
        if !heard {
            // The pooler's session goes on.
            drop(self.0.execute(&connection, &format!("UNLISTEN \"{channel}\"")).await);
        }
        Ok(heard)
    }

    /// Returns the error of a subscription to notices that do not arrive.
    pub(crate) fn deafness(&self) -> PortError {
        let what = "no notice arrives, as behind a pooler in transaction mode: set `notices_url` to the URL of a \
                    direct connection to the same database";
        PortError::new(PortErrorKind::Unsupported, format!("postgres: {}: {what}", self.0.connector.place))
    }

    /// Subscribes to a channel: each notice that is sent after this returned arrives, or a gap
    /// does.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub(crate) async fn subscribe(&self, channel: &str) -> Result<Subscription, PortError> {
        let mailbox = Arc::new(Mailbox::of(UNREAD, UNREAD_BYTES));
        let subscription =
            Subscription { core: Arc::downgrade(&self.0), channel: channel.to_owned(), mailbox: mailbox.clone() };
        let listening = {
            let mut state = self.0.state.lock();
            if let Some(error) = &state.down {
                return Err(PortError::new(PortErrorKind::Unavailable, error.to_string()));
            }
            state.unused.remove(channel);
            let of = state.channels.entry(channel.to_owned()).or_default();
            of.mailboxes.push(mailbox);
            if of.is_listening {
                return Ok(subscription);
            }
            let (tell, listening) = oneshot::channel();
            of.waiting.push(tell);
            if !std::mem::replace(&mut state.is_running, true) {
                Spawner::Tokio.spawn(run(Arc::downgrade(&self.0), self.0.changed.clone()));
            }
            listening
        };
        self.0.changed.notify_one();
        let answer = within(&self.0.connector.clock, self.0.limit, listening).await;
        match answer {
            Some(Ok(listens)) => listens.map(|()| subscription),
            Some(Err(_)) => Err(PortError::new(PortErrorKind::Closed, "postgres: the runtime is shutting down")),
            None => Err(timed_out(&self.0.connector.place, "LISTEN", self.0.limit)),
        }
    }

    /// Passes a payload to the subscribers of this handle, without the server.
    pub(crate) fn tell(&self, channel: &str, payload: &str) {
        self.0.dispatch(channel, payload);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.changed.notify_one();
    }
}

impl Subscription {
    /// Waits for the next notice or gap.
    ///
    /// # Cancel safety
    /// Dropping the future loses no notice.
    pub(crate) async fn recv(&self) -> Notice {
        self.mailbox.recv().await
    }

    /// Returns the next notice or gap, if there is one.
    pub(crate) fn try_recv(&self) -> Option<Notice> {
        self.mailbox.try_recv()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let Some(core) = self.core.upgrade() else { return };
        let mut state = core.state.lock();
        let Some(channel) = state.channels.get_mut(&self.channel) else { return };
        channel.mailboxes.retain(|mailbox| !Arc::ptr_eq(mailbox, &self.mailbox));
        if channel.mailboxes.is_empty() {
            if channel.is_listening {
                state.unused.insert(self.channel.clone());
            }
            state.channels.remove(&self.channel);
            core.changed.notify_one();
        }
    }
}

impl ListenerCore {
    fn dispatch(&self, channel: &str, payload: &str) {
        let state = self.state.lock();
        if let Some(of) = state.channels.get(channel) {
            let payload = Bytes::copy_from_slice(payload.as_bytes());
            of.mailboxes.iter().for_each(|mailbox| mailbox.put(Notice::Message(payload.clone())));
        }
    }

    /// Opens the connection, and returns a signal of its end.
    async fn connect(self: &Arc<Self>) -> Result<(Connection, oneshot::Receiver<()>), PortError> {
        let (alive, ended) = oneshot::channel::<()>();
        let core = Arc::downgrade(self);
        let on_message = move |message| {
            // Dropped along with this function, when the connection ends.
            let _alive = &alive;
            if let (AsyncMessage::Notification(notice), Some(core)) = (message, core.upgrade()) {
                core.dispatch(notice.channel(), notice.payload());
            }
        };
        let connection = self.connector.open(Some(Box::new(on_message)), |warning| self.say(warning)).await?;
        Ok((connection, ended))
    }

    async fn execute(&self, connection: &Connection, statements: &str) -> Result<(), PortError> {
        let place = &self.connector.place;
        match within(&self.connector.clock, self.limit, connection.client.batch_execute(statements)).await {
            Some(done) => done.map_err(|error| failure(place, error, Effect::Read)),
            None => Err(timed_out(place, "LISTEN", self.limit)),
        }
    }

    /// Listens on new channels, and stops listening on unused ones. With `is_new`, the connection
    /// is new: earlier subscribers may have missed notices.
    async fn listen(&self, connection: &Connection, is_new: bool) -> Result<(), PortError> {
        let (added, removed) = {
            let mut state = self.state.lock();
            let removed = std::mem::take(&mut state.unused);
            let added = state.channels.iter().filter(|(_, of)| is_new || !of.is_listening);
            (added.map(|(name, _)| name.clone()).collect::<Vec<_>>(), removed)
        };
        let mut statements = String::new();
        if !is_new {
            for name in &removed {
                let unlock = format!("SELECT pg_advisory_unlock_shared({});", listening(name));
                statements.push_str(&format!("UNLISTEN \"{name}\"; {unlock}"));
            }
        }
        for name in &added {
            statements.push_str(&format!("SELECT pg_advisory_lock_shared({}); LISTEN \"{name}\";", listening(name)));
        }
        if !statements.is_empty() {
            self.execute(connection, &statements).await?;
        }
        let mut state = self.state.lock();
        for name in added {
            let Some(of) = state.channels.get_mut(&name) else {
                // Its subscribers are gone again.
                state.unused.insert(name);
                continue;
            };
            if of.is_listening {
                of.mailboxes.iter().for_each(|mailbox| mailbox.put(Notice::Gap));
            }
            of.is_listening = true;
            // A subscriber that arrived after the statement was sent is covered as well: the connection listens by now.
            of.waiting.drain(..).for_each(|waiting| drop(waiting.send(Ok(()))));
        }
        Ok(())
    }

    /// Fails the subscribers that wait, and those to come, until the connection is restored.
    fn fail(&self, error: &PortError) {
        let was_up = {
            let mut state = self.state.lock();
            for of in state.channels.values_mut() {
                let failed = || PortError::new(PortErrorKind::Unavailable, error.to_string());
                of.waiting.drain(..).for_each(|waiting| drop(waiting.send(Err(failed()))));
            }
            state.down.replace(error.clone()).is_none()
        };
        if was_up {
            let (role, kind, reason) = (ConnectionRole::Notices, error.kind(), error.to_string());
            self.say(ConnectionEvent::Lost { role, kind, reason });
        }
    }

    fn say(&self, event: ConnectionEvent) {
        self.events.stage(self.connector.clock.now(), || event);
        self.events.flush(None);
    }

    fn backoff(&self) -> Backoff {
        Backoff::checked(BackoffConfig::default().between(RECONNECT.0, RECONNECT.1), &self.entropy)
    }
}

/// Keeps the connection as long as the handle is there.
async fn run(weak: Weak<ListenerCore>, changed: Arc<Notify>) {
    let Some(clock) = weak.upgrade().map(|core| core.connector.clock.clone()) else { return };
    let (mut attempts, mut delays) = (0, None);
    loop {
        attempts += 1;
        let Some(core) = weak.upgrade() else { return };
        let error = match serve(core, &weak, &changed, attempts).await {
            Served::HandleGone => return,
            Served::NotConnected(error) => error,
            Served::Lost(error) => {
                (attempts, delays) = (0, None);
                error
            }
        };
        let delay = {
            let Some(core) = weak.upgrade() else { return };
            core.fail(&error);
            // The first attempt after a loss is made at once.
            match &mut delays {
                None => {
                    delays = Some(core.backoff());
                    Duration::ZERO
                }
                Some(delays) => delays.next().unwrap_or(RECONNECT.1),
            }
        };
        clock.sleep(delay).await;
    }
}

enum Served {
    HandleGone,
    NotConnected(PortError),
    Lost(PortError),
}

/// Connects, and serves subscribers until the connection is lost.
async fn serve(mut core: Arc<ListenerCore>, weak: &Weak<ListenerCore>, changed: &Notify, attempts: u32) -> Served {
    let (connection, mut ended) = match core.connect().await {
        Ok(connected) => connected,
        Err(error) => return Served::NotConnected(error),
    };
    if let Err(error) = core.listen(&connection, true).await {
        return Served::NotConnected(error);
    }
    if core.state.lock().down.take().is_some() {
        core.say(ConnectionEvent::Restored { role: ConnectionRole::Notices, attempts });
    }
    loop {
        if let Err(error) = core.listen(&connection, false).await {
            return Served::Lost(error);
        }
        let (clock, place) = (core.connector.clock.clone(), core.connector.place.clone());
        drop(core);
        let wait = async {
            match race(changed.notified(), clock.sleep(PROBE)).await {
                crate::race::First::One(()) => false,
                crate::race::First::Other(()) => true,
            }
        };
        let probes = match race(&mut ended, wait).await {
            crate::race::First::One(_) => {
                let message = format!("postgres: {place}: the connection for notices was closed");
                return Served::Lost(PortError::new(PortErrorKind::Unavailable, message));
            }
            crate::race::First::Other(probes) => probes,
        };
        match weak.upgrade() {
            Some(again) => core = again,
            None => return Served::HandleGone,
        }
        if probes && let Err(error) = core.execute(&connection, "").await {
            return Served::Lost(error);
        }
    }
}
