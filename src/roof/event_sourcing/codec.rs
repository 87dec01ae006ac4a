//! The conversion of events to bytes and back, also of those with an older schema.
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    error::Error,
    fmt,
    sync::Arc,
};

use super::commit::NewEvent;
use crate::{
    codec::Codec,
    config::ConfigError,
    port::{PortError, PortErrorKind},
};

type Upcast = Arc<dyn Fn(&[u8]) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> + Send + Sync>;
type NameOf<E> = Arc<dyn Fn(&E) -> &'static str + Send + Sync>;

/// Converts events of type `E` to bytes and back. A clone shares its functions.
///
/// Each type of event has a schema, 1 by default. A body with an older one is changed step by step.
/// An unknown type, or a schema above ours, is an error: an old process in a rolling deployment
/// stops and skips nothing.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use steadfast::{codec::Codec, event_sourcing::{EventCodec, NewEvent}};
///
/// #[derive(Serialize, Deserialize, Debug, PartialEq)]
/// enum Bill { Sent, Paid { cents: u64, currency: String } }
///
/// let json = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
/// let kind = |bill: &Bill| match bill { Bill::Sent => "Sent", Bill::Paid { .. } => "Paid" };
/// let codec = EventCodec::new(json, kind)
///     .schema("Paid", 2)
///     .upcast("Paid", 1, |body| {
///         // In the JSON of an enum the fields are inside of the variant.
///         let mut bill: serde_json::Value = serde_json::from_slice(body)?;
///         bill["Paid"]["currency"] = "EUR".into();
///         serde_json::to_vec(&bill)
///     })
///     .ignore("Viewed");
///
/// let old = NewEvent::new("Paid", r#"{"Paid":{"cents":700}}"#);
/// let paid = Bill::Paid { cents: 700, currency: "EUR".into() };
/// assert_eq!(codec.decode(&old).unwrap(), Some(paid));
/// assert_eq!(codec.decode(&NewEvent::new("Viewed", "")).unwrap(), None);
/// let unknown = codec.decode(&NewEvent::new("Refunded", "{}")).unwrap_err();
/// assert!(unknown.to_string().contains("\"Refunded\""));
/// ```
pub struct EventCodec<E> {
    codec: Codec<E>,
    name: NameOf<E>,
    schemas: BTreeMap<String, u32>,
    upcasts: BTreeMap<(String, u32), Upcast>,
    ignored: BTreeSet<String>,
}

impl<E> Clone for EventCodec<E> {
    fn clone(&self) -> Self {
        Self {
            codec: self.codec.clone(),
            name: self.name.clone(),
            schemas: self.schemas.clone(),
            upcasts: self.upcasts.clone(),
            ignored: self.ignored.clone(),
        }
    }
}

impl<E> fmt::Debug for EventCodec<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventCodec")
            .field("schemas", &self.schemas)
            .field("ignored", &self.ignored)
            .finish_non_exhaustive()
    }
}

impl<E> EventCodec<E> {
    /// Creates a codec of these bytes. `name` returns the type of an event: a stored name, which
    /// stays when the code is renamed.
    pub fn new(codec: Codec<E>, name: impl Fn(&E) -> &'static str + Send + Sync + 'static) -> Self {
        let (schemas, upcasts, ignored) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Self { codec, name: Arc::new(name), schemas, upcasts, ignored }
    }

    /// Sets the schema with which events of a type are written. 1 by default.
    #[must_use]
    pub fn schema(mut self, kind: impl Into<String>, schema: u32) -> Self {
        self.schemas.insert(kind.into(), schema);
        self
    }

    /// Adds the step from a schema to the next one: a function of the stored body.
    #[must_use]
    pub fn upcast<R: Into<Box<dyn Error + Send + Sync>>>(
        mut self,
        kind: impl Into<String>,
        from: u32,
        step: impl Fn(&[u8]) -> Result<Vec<u8>, R> + Send + Sync + 'static,
    ) -> Self {
        self.upcasts.insert((kind.into(), from), Arc::new(move |body: &[u8]| step(body).map_err(Into::into)));
        self
    }

    /// Passes over events of a type.
    #[must_use]
    pub fn ignore(mut self, kind: impl Into<String>) -> Self {
        self.ignored.insert(kind.into());
        self
    }

    /// Rejects schemas without a step from each one before it.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        for (kind, schema) in &self.schemas {
            let lacks = |from: &u32| !self.upcasts.contains_key(&(kind.clone(), *from));
            if *schema == 0 {
                return Err(ConfigError::new("schema", format!("must be at least 1 of {kind:?}")));
            }
            if let Some(from) = (1..*schema).find(lacks) {
                let rule = format!("must have a step of {kind:?} from schema {from} to {}", from + 1);
                return Err(ConfigError::new("upcast", rule));
            }
        }
        match self.upcasts.keys().find(|(kind, from)| *from >= self.schema_of(kind)) {
            Some((kind, from)) => {
                let rule =
                    format!("must lead to schema {} of {kind:?} at most, begins at {from}", self.schema_of(kind));
                Err(ConfigError::new("upcast", rule))
            }
            None => Ok(()),
        }
    }

    fn schema_of(&self, kind: &str) -> u32 {
        self.schemas.get(kind).copied().unwrap_or(1)
    }

    /// Converts an event to the form in which it is appended.
    ///
    /// # Errors
    /// `Invalid`, with the reason of the function, or for a type that is [ignored](Self::ignore).
    pub fn encode(&self, event: &E) -> Result<NewEvent, PortError> {
        let kind = (self.name)(event);
        if self.ignored.contains(kind) {
            return Err(PortError::invalid("event", format_args!("must not be {kind:?}, which this codec ignores")));
        }
        let body = self.codec.encode(event).map_err(|error| PortError::invalid("event", error))?;
        Ok(NewEvent::new(kind, body).schema(self.schema_of(kind)))
    }

    /// Converts a stored event. `None` for one of a type that is [ignored](Self::ignore).
    ///
    /// # Errors
    /// `TooNew` for a schema above ours, `Corrupt` for an unknown type or a body that does not
    /// decode. The text has the type and the schema.
    pub fn decode(&self, event: &NewEvent) -> Result<Option<E>, PortError> {
        if self.ignored.contains(&event.kind) {
            return Ok(None);
        }
        let (kind, ours) = (event.kind.as_str(), self.schema_of(&event.kind));
        if event.schema > ours {
            let message = format!("events: {kind:?} has schema {}, and this process knows {ours}", event.schema);
            return Err(PortError::new(PortErrorKind::TooNew, message));
        }
        let failed = |schema: u32, reason: &dyn fmt::Display| {
            PortError::new(PortErrorKind::Corrupt, format!("events: {kind:?} of schema {schema}: {reason}"))
        };
        let mut body = Cow::Borrowed(&event.body[..]);
        for schema in event.schema..ours {
            let Some(step) = self.upcasts.get(&(kind.to_owned(), schema)) else {
                return Err(failed(schema, &"there is no step to the next schema"));
            };
            body = Cow::Owned(step(&body).map_err(|error| failed(schema, &error))?);
        }
        let decoded = self.codec.decode(&body).map_err(|error| failed(ours, &error))?;
        match (self.name)(&decoded) {
            name if name == kind => Ok(Some(decoded)),
            name => Err(failed(ours, &format_args!("is unknown to this process, which decodes it as {name:?}"))),
        }
    }
}
