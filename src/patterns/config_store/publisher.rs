//! Publishing revisions: a type of its own, so that its process may have other credentials.
use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use thiserror::Error;

use super::{
    Change, Documents, MemberReport, PublisherConfig, PublisherEvent as Event, RevisionInfo,
    config::check_layers,
    documents::{self, BoxError, field_of},
    members::{self, topic},
};
use crate::notify::Notifier;
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents},
    config::{ConfigError, Name, require},
    entropy::Entropy,
    observe::{Events, Subscription},
    port::{Capability, PortError, PortErrorKind, ask},
    presence::{MAX_MEMBERS, Presence},
    revisions::{Head, Revisions},
    store::{Store, StoreError, Version},
    time::{Clock, Timestamp},
};

/// Longest author and reason, in bytes.
const LONGEST_NOTE: usize = 1_024;

/// Error of a [`ConfigPublisher`]. Its text has no values of a document.
#[derive(Clone, Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The store failed. [`Failure`](crate::port::Failure) tells whether the change may have been
    /// made: look at the [head](ConfigPublisher::head).
    #[error("the store of the configuration failed: {0}")]
    Store(StoreError),
    /// Another number is in effect than the change expects. Nothing was published.
    #[error("revision {current} is in effect, and not {expected}")]
    Superseded {
        /// The expected number.
        expected: u64,
        /// The number in effect.
        current: u64,
    },
    /// The loader of a reader refused the documents, or panicked. Nothing was published. The
    /// [source](std::error::Error::source) is the loader's error, which may have values.
    #[error("the reader of {reader} refuses the change{}", field.as_ref().map_or_else(String::new, |field| format!(", field `{field}`")))]
    Invalid {
        /// Layers of the reader.
        reader: String,
        /// Field of the settings, or name of the document, if the loader named one.
        field: Option<String>,
        /// Error of the loader; `None` if it panicked.
        source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    },
    /// A document, author or reason is too large, or has no name. Nothing was published.
    #[error(transparent)]
    Change(#[from] ConfigError),
    /// The change changes no document, and is not [forced](Change::force).
    #[error("the change changes no document")]
    Unchanged,
    /// A roll-out is under way. A rollback ends it.
    #[error("revision {0} is being rolled out")]
    RolloutUnderWay(u64),
    /// The number is not among those that are kept.
    #[error("revision {0} is not in the history")]
    NotInHistory(u64),
}

impl fmt::Debug for PublishError {
    /// Shows no error of a loader, which may quote a document.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => f.debug_tuple("Store").field(error).finish(),
            Self::Superseded { expected, current } => {
                f.debug_struct("Superseded").field("expected", expected).field("current", current).finish()
            }
            Self::Invalid { reader, field, source: _ } => {
                f.debug_struct("Invalid").field("reader", reader).field("field", field).finish_non_exhaustive()
            }
            Self::Change(error) => f.debug_tuple("Change").field(error).finish(),
            Self::Unchanged => f.write_str("Unchanged"),
            Self::RolloutUnderWay(number) => f.debug_tuple("RolloutUnderWay").field(number).finish(),
            Self::NotInHistory(number) => f.debug_tuple("NotInHistory").field(number).finish(),
        }
    }
}

/// The check of one reader, without its result.
type Check = dyn Fn(&Documents) -> Result<(), BoxError> + Send + Sync;

struct Reader {
    layers: Vec<String>,
    check: Box<Check>,
}

/// Publishes revisions of a configuration. A clone is the same. The [module's page](super) states
/// the guarantees.
#[derive(Clone)]
pub struct ConfigPublisher(Arc<Inner>);

struct Inner {
    name: Name,
    config: PublisherConfig,
    revisions: Revisions,
    presence: Option<Presence>,
    readers: Vec<Reader>,
    notifier: Option<Arc<dyn Notifier>>,
    clock: Clock,
    entropy: Entropy,
    events: Events<Event>,
}

/// A step of the roll-out of a change.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RolloutStep {
    /// Time of the step, by the driver's clock.
    pub at: Timestamp,
    /// The step.
    pub kind: RolloutStepKind,
}

/// An event in a step of a roll-out.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum RolloutStepKind {
    /// This share of the processes takes the change.
    Stage(f64),
    /// The change is in effect for all.
    Completed,
    /// All return to the number before.
    Aborted,
}

impl RolloutStepKind {
    fn to_text(self) -> String {
        match self {
            Self::Stage(share) => format!("stage {share}"),
            Self::Completed => "completed".to_owned(),
            Self::Aborted => "aborted".to_owned(),
        }
    }

    fn of_text(text: &str) -> Option<Self> {
        match text {
            "completed" => Some(Self::Completed),
            "aborted" => Some(Self::Aborted),
            text => Some(Self::Stage(text.strip_prefix("stage ")?.parse().ok()?)),
        }
    }
}

/// The head as it was read, and its version.
pub(crate) type Found = (Head, Option<Version>);

impl ConfigPublisher {
    /// Creates a builder of a publisher of the configuration with this name.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CConfigPublisher%3E): `reader`,
    /// `notifier`.
    pub fn builder(store: Arc<dyn Store>, name: impl Into<Name>, config: PublisherConfig) -> Builder<Self> {
        Builder::new(PublisherSpec { store, name: name.into(), config, readers: Vec::new(), notifier: None })
    }

    /// Publishes a change, and returns its number. First the loaders of all readers run on the
    /// documents as they would be.
    ///
    /// # Errors
    /// [`PublishError`]: nothing was published, except that an error of the store may leave it
    /// open.
    ///
    /// # Cancel safety
    /// The change is published as a whole or not at all: look at the [head](Self::head).
    pub async fn publish(&self, change: Change) -> Result<u64, PublishError> {
        self.publish_as(change, None).await
    }

    /// Publishes a change for none of the processes yet, with the shares of its stages.
    pub(crate) async fn stage(&self, change: Change, shares: Vec<u64>) -> Result<u64, PublishError> {
        self.publish_as(change, Some(shares)).await
    }

    async fn publish_as(&self, change: Change, shares: Option<Vec<u64>>) -> Result<u64, PublishError> {
        check_notes(&change.author, &change.reason)?;
        require(change.documents.keys().all(|name| !name.is_empty()), "document", "must have a name")?;
        let is_one = change.expected.is_none_or(|(lowest, highest)| lowest == highest);
        require(is_one, "expecting", "must be the same number in all changes that are joined")?;
        loop {
            let found = self.read_head().await?;
            let head = &found.0;
            if let Some(stage) = head.stage() {
                return Err(PublishError::RolloutUnderWay(stage.number));
            }
            if let Some((expected, _)) = change.expected
                && expected != head.stable()
            {
                return Err(PublishError::Superseded { expected, current: head.stable() });
            }
            if shares.is_some() && head.stable() == 0 {
                return Err(
                    ConfigError::new("change", "must not be the first one, which has nothing to go back to").into()
                );
            }
            let documents = self.changed(head, &change).await?;
            let info = (change.author.as_str(), change.reason.as_str(), None);
            if let Some(number) = self.try_publish(&found, &documents, info, shares.clone()).await? {
                return Ok(number);
            }
        }
    }

    /// Publishes the documents of an earlier revision as a new one, and returns its number. It ends
    /// a roll-out.
    ///
    /// # Errors
    /// [`PublishError::NotInHistory`], or those of [`publish`](Self::publish): the loaders of today
    /// may refuse documents of old.
    ///
    /// # Cancel safety
    /// Same as [`publish`](Self::publish).
    pub async fn rollback(
        &self,
        number: u64,
        author: impl Into<String>,
        reason: impl Into<String>,
    ) -> Result<u64, PublishError> {
        let (author, reason) = (author.into(), reason.into());
        check_notes(&author, &reason)?;
        loop {
            let found = self.read_head().await?;
            let (_, documents) = self.read(&found.0, number).await?;
            let info = (author.as_str(), reason.as_str(), Some(number));
            if let Some(number) = self.try_publish(&found, &documents, info, None).await? {
                return Ok(number);
            }
        }
    }

    /// Returns the number in effect, 0 before the first one.
    ///
    /// # Errors
    /// Those of the store.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn head(&self) -> Result<u64, PublishError> {
        Ok(self.read_head().await?.0.stable())
    }

    /// Returns the documents of a number in the history.
    ///
    /// # Errors
    /// [`PublishError::NotInHistory`], or an error of the store.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn documents(&self, number: u64) -> Result<Documents, PublishError> {
        Ok(self.read(&self.read_head().await?.0, number).await?.1)
    }

    /// Returns author, reason, time and digest of the latest revisions, with the newest first. It
    /// reads each of them as a whole.
    ///
    /// # Errors
    /// Those of the store.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn audit(&self, limit: usize) -> Result<Vec<RevisionInfo>, PublishError> {
        let (head, _) = self.read_head().await?;
        let mut infos = Vec::new();
        for (number, _) in head.rows().rev().take(limit) {
            match self.read(&head, number).await {
                Ok((info, _)) => infos.push(info),
                // Deleted since the head was read.
                Err(PublishError::NotInHistory(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(infos)
    }

    /// Returns the reports of the processes that read the configuration: the number that each runs.
    ///
    /// # Errors
    /// Those of the store; `Unsupported` if it has no times to live, and `Full` if there are more
    /// than 500 processes.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn members(&self) -> Result<Vec<MemberReport>, PublishError> {
        let failed = |kind, message: String| PublishError::Store(PortError::new(kind, message).into());
        let Some(presence) = &self.0.presence else {
            return Err(failed(PortErrorKind::Unsupported, "the store has no times to live".to_owned()));
        };
        let late = "the store did not answer in time";
        let reports =
            members::reports(presence).await.map_err(|error| PublishError::Store(error.or_timed_out(late)))?;
        reports.ok_or_else(|| failed(PortErrorKind::Full, format!("more than {MAX_MEMBERS} processes")))
    }

    /// Returns the name of the configuration.
    pub fn name(&self) -> &Name {
        &self.0.name
    }

    /// Subscribes to the events.
    pub fn events(&self) -> Subscription<Event> {
        self.0.events.subscribe()
    }

    /// Replaces the head that was read, and notes the step. Returns `false` if another process was
    /// faster.
    pub(crate) async fn move_head(
        &self,
        (head, version): &Found,
        next: &Head,
        step: RolloutStepKind,
    ) -> Result<bool, PublishError> {
        let revisions = &self.0.revisions;
        let moved = revisions.move_head(next, (head, *version)).await.map_err(PublishError::Store)?;
        if moved {
            self.notice(head.last()).await;
            let at = self.0.clock.wall().as_millis();
            // An audit that misses a step misses no revision.
            revisions.note(head.last(), at, step.to_text()).await;
        }
        Ok(moved)
    }

    /// Returns the steps of the roll-out of a number, with the oldest first.
    ///
    /// # Errors
    /// Those of the store.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn steps(&self, number: u64) -> Result<Vec<RolloutStep>, PublishError> {
        let notes = self.0.revisions.notes(number).await.map_err(PublishError::Store)?;
        let step = |(at, text): (u64, String)| {
            Some(RolloutStep { at: Timestamp::from_millis(at), kind: RolloutStepKind::of_text(&text)? })
        };
        Ok(notes.into_iter().filter_map(step).collect())
    }

    pub(crate) fn can_list_members(&self) -> bool {
        self.0.presence.is_some()
    }

    pub(crate) async fn read_head(&self) -> Result<Found, PublishError> {
        let found = self.0.revisions.head().await.map_err(PublishError::Store)?;
        Ok(found.map_or_else(Default::default, |(head, version)| (head, Some(version))))
    }

    async fn read(&self, head: &Head, number: u64) -> Result<(RevisionInfo, Documents), PublishError> {
        let bytes = self.0.revisions.document(head, number).await.map_err(PublishError::Store)?;
        let bytes = bytes.ok_or(PublishError::NotInHistory(number))?;
        documents::decode(number, bytes).map_err(|_| {
            PublishError::Store(PortError::new(PortErrorKind::Corrupt, format!("revision {number} is damaged")).into())
        })
    }

    /// Returns the documents after the change, which all readers accept.
    async fn changed(&self, head: &Head, change: &Change) -> Result<Documents, PublishError> {
        let before = match head.stable() {
            0 => Documents::default(),
            number => self.read(head, number).await?.1,
        };
        let documents = change.apply(&before);
        if documents == before && !change.is_forced {
            return Err(PublishError::Unchanged);
        }
        Ok(documents)
    }

    /// Runs the loaders of all readers.
    fn check(&self, documents: &Documents) -> Result<(), PublishError> {
        if let Some(name) = documents.larger_than(self.0.config.max_document) {
            let rule = format!("must have at most {} bytes", self.0.config.max_document);
            return Err(ConfigError::new(name.to_owned(), rule).into());
        }
        for Reader { layers, check } in &self.0.readers {
            let layers_of = documents.only(layers);
            let (field, source) = match catch_unwind(AssertUnwindSafe(|| check(&layers_of))) {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => (field_of(&error), Some(error.into())),
                Err(_) => (None, None),
            };
            let reader = layers.join(", ");
            self.tell(Event::Refused { reader: reader.clone(), field: field.clone() });
            return Err(PublishError::Invalid { reader, field, source });
        }
        Ok(())
    }

    /// Publishes these documents behind the head that was read. `None` if another publisher was
    /// faster.
    async fn try_publish(
        &self,
        (head, version): &Found,
        documents: &Documents,
        (author, reason, source): (&str, &str, Option<u64>),
        shares: Option<Vec<u64>>,
    ) -> Result<Option<u64>, PublishError> {
        self.check(documents)?;
        let (number, owner) = (head.last() + 1, self.0.entropy.next_u64());
        let info = RevisionInfo {
            number,
            digest: documents.digest(),
            author: author.to_owned(),
            reason: reason.to_owned(),
            at: self.0.clock.wall(),
            source,
        };
        let revisions = &self.0.revisions;
        revisions.write(number, owner, documents::encode(&info, documents)).await.map_err(PublishError::Store)?;
        let next = head.publish(owner, shares, self.0.config.history);
        if !revisions.move_head(&next, (head, *version)).await.map_err(PublishError::Store)? {
            revisions.discard(number, owner).await;
            return Ok(None);
        }
        self.tell(Event::Published { number, author: info.author, source });
        self.notice(number).await;
        revisions.prune(head, &next).await;
        Ok(Some(number))
    }

    /// Publishes a notice. A lost one is compensated by polling.
    async fn notice(&self, number: u64) {
        if let Some(notifier) = &self.0.notifier {
            let topic = topic(&self.0.name);
            let publish = notifier.publish(&topic, number.to_string().into());
            let _ = ask(&self.0.clock, self.0.config.call_timeout, publish).await;
        }
    }

    fn tell(&self, event: Event) {
        self.0.events.send(Some(&self.0.name), self.0.clock.now(), || event);
    }
}

fn check_notes(author: &str, reason: &str) -> Result<(), ConfigError> {
    require(author.len() <= LONGEST_NOTE, "author", "must have at most 1,024 bytes")?;
    require(reason.len() <= LONGEST_NOTE, "reason", "must have at most 1,024 bytes")
}

/// Arguments of a publisher, beside clock and entropy.
pub struct PublisherSpec {
    store: Arc<dyn Store>,
    name: Name,
    config: PublisherConfig,
    readers: Vec<Reader>,
    notifier: Option<Arc<dyn Notifier>>,
}

impl Builder<ConfigPublisher> {
    /// Adds a program that reads these documents by this loader. Each change must pass the loaders
    /// of all readers.
    pub fn reader<T, E: Into<BoxError>>(
        mut self,
        layers: impl IntoIterator<Item = impl Into<String>>,
        load: impl Fn(&Documents) -> Result<T, E> + Send + Sync + 'static,
    ) -> Self {
        let layers = layers.into_iter().map(Into::into).collect();
        let check = move |documents: &Documents| load(documents).map(drop).map_err(Into::into);
        self.spec.readers.push(Reader { layers, check: Box::new(check) });
        self
    }

    /// Sets the notifier that tells the processes of a change earlier than they poll.
    pub fn notifier(mut self, notifier: Arc<dyn Notifier>) -> Self {
        self.spec.notifier = Some(notifier);
        self
    }
}

impl Component for ConfigPublisher {
    type Built = Result<Self, ConfigError>;
    type Spec = PublisherSpec;

    fn assemble(spec: PublisherSpec, common: Common) -> Self::Built {
        let PublisherSpec { store, name, config, readers, notifier } = spec;
        config.check()?;
        let can = store.capabilities();
        can.require(Capability::Linearizable).map_err(|lacks| lacks.refuse("store"))?;
        require(!name.as_str().is_empty(), "name", "must not be empty")?;
        readers.iter().try_for_each(|reader| check_layers(&reader.layers))?;
        let entropy = common.entropy();
        let Common { clock, hooks, .. } = common;
        let presence = members::presence(&store, (&clock, config.call_timeout), &name, "");
        let revisions = members::revisions(store, &clock, config.call_timeout, &name);
        require(revisions.longest_key() <= can.max_key(), "name", "must not be longer than the store's keys")?;
        let events = hooks.events();
        Ok(Self(Arc::new(Inner { name, config, revisions, presence, readers, notifier, clock, entropy, events })))
    }
}

impl HasEntropy for ConfigPublisher {}
impl HasEvents<Event> for ConfigPublisher {}

crate::build::debug_fields!(ConfigPublisher, |this| name: this.0.name, readers: this.0.readers.len());

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reader").field(&self.layers).finish()
    }
}
