//! Building uploads, and requests to their object store.
use std::{future::Future, sync::Arc};

use object_store::{ObjectStore, path::Path, signer::Signer};

use super::{
    Candidate, Inspection, StoreKind, UploadConfig, UploadError, UploadEvent as Event, checks::Inspect, rows::Rows,
};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents},
    call::{Explanation, Layer},
    config::{ConfigError, Name, require},
    entropy::Entropy,
    observe::{Events, Subscription},
    outcome::PolicyKind,
    port::{AskError, Capability, ask},
    store::{Store, StoreError},
    time::Clock,
};

/// Uploads to an object store: signed URLs for clients, and the completion of what they wrote. The
/// [module's page](super::super) has the details.
///
/// ```
/// use std::{future::pending, sync::Arc};
/// use object_store::{ObjectStore, signer::Signer};
/// use steadfast::{
///     store::Store,
///     valet_key::{Declared, Inspection, StoreKind, UploadConfig, Uploads},
/// };
///
/// /// `bucket` is `object_store::aws::AmazonS3`, say.
/// async fn show<S: ObjectStore + Signer>(
///     bucket: Arc<S>,
///     store: Arc<dyn Store>,
///     digest: [u8; 32],
/// ) -> Result<(), Box<dyn std::error::Error>> {
///     let config = UploadConfig::default().kind(StoreKind::S3).max_bytes(10 << 20);
///     let uploads = Uploads::builder(bucket, store, "scans", config)
///         .inspect(|copy| async move {
///             Ok::<_, object_store::Error>(match copy.read().await?.starts_with(b"%PDF-") {
///                 true => Inspection::Accept,
///                 false => Inspection::Reject("no PDF".to_owned()),
///             })
///         })
///         .build()?;
///
///     // The client sends a `PUT` to this URL with these headers, and then reports the end.
///     let declared = Declared::new("application/pdf", 81_920).sha256(digest);
///     let ticket = uploads.begin("t7", declared).await?;
///     println!("{} {:?}", ticket.url, ticket.headers);
///
///     // As often as it is called, the result is the same.
///     let accepted = uploads.complete(&ticket.id).await?;
///     assert!(accepted.path.starts_with("copies/scans/"));
///
///     // Beside that: ends the uploads that nobody reports.
///     uploads.run(pending()).await;
///     Ok(())
/// }
/// ```
///
/// Clones share their settings and events. Any number of processes may complete uploads of one
/// name.
#[derive(Clone)]
pub struct Uploads(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) name: Name,
    pub(super) objects: Arc<dyn ObjectStore>,
    pub(super) signer: Arc<dyn Signer>,
    pub(super) rows: Rows,
    pub(super) config: UploadConfig,
    pub(super) inspect: Option<Inspect>,
    pub(super) clock: Clock,
    pub(super) entropy: Entropy,
    events: Events<Event>,
}

/// Arguments of uploads, beside their clock.
pub struct UploadsSpec {
    objects: Arc<dyn ObjectStore>,
    signer: Arc<dyn Signer>,
    store: Arc<dyn Store>,
    name: Name,
    config: UploadConfig,
    inspect: Option<Inspect>,
}

/// Longest name in bytes.
const MAX_NAME: usize = 128;

impl Builder<Uploads> {
    /// Sets the inspection of each copy, before it is accepted. Only what it accepts is accepted;
    /// after an error, a panic or [`inspect_timeout`](UploadConfig::inspect_timeout) another
    /// completion inspects another copy.
    ///
    /// The client cannot change a copy. Two completions may inspect two copies at the same time.
    pub fn inspect<F, E>(mut self, inspect: impl Fn(Candidate) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Inspection, E>> + Send + 'static,
        E: std::fmt::Display + 'static,
    {
        self.spec.inspect = Some(Box::new(move |candidate| {
            let inspected = inspect(candidate);
            Box::pin(async move { inspected.await.map_err(|error| error.to_string()) })
        }));
        self
    }
}

impl Component for Uploads {
    type Built = Result<Self, ConfigError>;
    type Spec = UploadsSpec;

    fn assemble(spec: UploadsSpec, common: Common) -> Self::Built {
        let UploadsSpec { objects, signer, store, name, config, inspect } = spec;
        config.check()?;
        let is_name = (1..=MAX_NAME).contains(&name.as_str().len()) && !name.as_str().contains('/');
        require(is_name, "name", "must have 1 to 128 bytes, and no `/`")?;
        for needed in [Capability::Durable, Capability::Linearizable, Capability::TimeToLive] {
            store.capabilities().require(needed).map_err(|lacks| lacks.refuse("store"))?;
        }
        let (clock, entropy) = (common.clock.clone(), common.entropy());
        let rows = Rows { store, name: name.clone(), clock: clock.clone(), call_timeout: config.call_timeout };
        let events = common.hooks.events();
        Ok(Self(Arc::new(Inner { name, objects, signer, rows, config, inspect, clock, entropy, events })))
    }
}

impl HasEvents<Event> for Uploads {}
impl HasEntropy for Uploads {}

crate::build::debug_fields!(Uploads, |this| name: this.0.name, config: this.0.config);

impl Uploads {
    /// Creates uploads of this name, whose objects lie below `incoming/` and `copies/`, and whose
    /// state lies in `store`. Not each copy is accepted.
    ///
    /// # Errors
    /// If a setting breaks its rule, the name is empty, has more than 128 bytes or a `/`, or the
    /// store is not durable and linearizable, or has no times to live.
    pub fn new<S: ObjectStore + Signer>(
        objects: Arc<S>,
        store: Arc<dyn Store>,
        name: impl Into<Name>,
        config: UploadConfig,
    ) -> Result<Self, ConfigError> {
        Self::builder(objects, store, name, config).build()
    }

    /// Creates a builder with the arguments of [`new`](Self::new).
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CUploads%3E): `inspect`.
    pub fn builder<S: ObjectStore + Signer>(
        objects: Arc<S>,
        store: Arc<dyn Store>,
        name: impl Into<Name>,
        config: UploadConfig,
    ) -> Builder<Self> {
        let (signer, name) = (objects.clone(), name.into());
        Builder::new(UploadsSpec { objects, signer, store, name, config, inspect: None })
    }

    /// Returns the settings, with a warning for each promise that the store's URLs do not bind, so
    /// that it is checked at completion alone.
    pub fn explain(&self) -> Explanation {
        let Inner { config, name, .. } = &*self.0;
        let settings = format!(
            "{}: URLs for {:?}; at most {} bytes, {} outstanding a tag",
            config.kind.as_str(),
            config.url_lifetime,
            config.max_bytes,
            config.max_outstanding
        );
        let mut layer = Layer::new(PolicyKind::Custom("uploads"), Some(name.clone()), settings);
        for warning in unbound(config.kind) {
            layer = layer.with_warning((*warning).to_owned());
        }
        let mut explanation = Explanation::default();
        explanation.push(layer);
        explanation
    }

    /// Subscribes to the events, from now on.
    pub fn events(&self) -> Subscription<Event> {
        self.0.events.subscribe()
    }

    pub(super) fn send(&self, event: impl FnOnce() -> Event) {
        self.0.events.send(Some(&self.0.name), self.0.clock.now(), event);
    }

    /// Returns the path that a client writes.
    pub(super) fn incoming(&self, id: &str) -> Path {
        Path::from_iter(["incoming", self.0.name.as_str(), id])
    }

    /// Returns the path of a copy, which no URL can write.
    pub(super) fn copied(&self, copy: &str) -> Path {
        Path::from_iter(["copies", self.0.name.as_str(), copy])
    }

    /// Waits for the object store. `None` if there is no such object.
    pub(super) async fn object<T>(
        &self,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<Option<T>, UploadError> {
        let Inner { clock, config, .. } = &*self.0;
        let retry_after = config.retry_after;
        match ask(clock, config.call_timeout, request).await {
            Ok(answer) => Ok(Some(answer)),
            Err(AskError::Failed(object_store::Error::NotFound { .. })) => Ok(None),
            Err(AskError::Failed(error)) => Err(UploadError::Objects { error: Some(Arc::new(error)), retry_after }),
            Err(AskError::TimedOut) => Err(UploadError::Objects { error: None, retry_after }),
        }
    }

    pub(super) fn store_failed(&self) -> impl Fn(StoreError) -> UploadError + use<> {
        let retry_after = self.0.config.retry_after;
        move |error| UploadError::Store { error, retry_after }
    }
}

/// Returns the promises that a URL does not bind.
const fn unbound(kind: StoreKind) -> &'static [&'static str] {
    match kind {
        StoreKind::S3 => &["without a declared digest a URL does not bind the length: checked at completion"],
        StoreKind::Gcs => &["a URL does not bind the digest: checked at completion"],
        StoreKind::Azure => &[
            "a URL does not bind length, type and digest: checked at completion",
            "a URL writes its object again and again until it expires: each completion checks a copy of its own",
        ],
    }
}
