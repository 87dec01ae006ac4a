//! The documents of one revision, and their stored form.
use std::{collections::BTreeMap, fmt, sync::Arc};

use bytes::Bytes;
use thiserror::Error;

use crate::{
    config::ConfigError,
    hash::stable_hash,
    time::Timestamp,
    wire::{In, Out},
};

/// Error of a user's function.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The documents of one revision that a program reads, by their names. A clone shares them.
#[derive(Clone, PartialEq, Default)]
pub struct Documents(Arc<BTreeMap<String, Bytes>>);

/// Error of the access to a document. It has no content.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// The revision has no document of this name, or it is no layer of this program.
    #[error("there is no document `{0}`")]
    Missing(String),
    /// The document is no text in UTF-8.
    #[error("the document `{0}` is no text in UTF-8")]
    NotText(String),
}

impl Documents {
    pub(super) fn new(documents: BTreeMap<String, Bytes>) -> Self {
        Self(Arc::new(documents))
    }

    /// Returns the text of a document.
    ///
    /// # Errors
    /// [`DocumentError`], with the name of the document.
    pub fn text(&self, name: &str) -> Result<&str, DocumentError> {
        std::str::from_utf8(self.bytes(name)?).map_err(|_| DocumentError::NotText(name.to_owned()))
    }

    /// Returns the bytes of a document.
    ///
    /// # Errors
    /// [`DocumentError::Missing`].
    pub fn bytes(&self, name: &str) -> Result<&Bytes, DocumentError> {
        self.0.get(name).ok_or_else(|| DocumentError::Missing(name.to_owned()))
    }

    /// Returns the names, in their order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(super) fn to_map(&self) -> BTreeMap<String, Bytes> {
        BTreeMap::clone(&self.0)
    }

    /// Returns those of these names alone, as copies: the others share their memory, and would be
    /// kept with them.
    pub(super) fn only(&self, names: &[String]) -> Self {
        let found = |name: &String| Some((name.clone(), Bytes::copy_from_slice(self.0.get(name)?)));
        Self::new(names.iter().filter_map(found).collect())
    }

    /// Returns the name of a document that is larger.
    pub(super) fn larger_than(&self, most: usize) -> Option<&str> {
        self.0.iter().find(|(_, bytes)| bytes.len() > most).map(|(name, _)| name.as_str())
    }

    pub(super) fn digest(&self) -> u64 {
        let mut out = Out::default();
        self.encode(&mut out);
        stable_hash(&out.into_bytes())
    }

    pub(super) fn encode(&self, out: &mut Out) {
        out.list(self.0.iter(), |out, (name, bytes)| {
            out.text(name);
            out.bytes(bytes);
        });
    }

    pub(super) fn decode(input: &mut In) -> Option<Self> {
        let list = input.list(|input| Some((input.text()?, input.bytes()?)))?;
        Some(Self::new(list.into_iter().collect()))
    }
}

impl fmt::Debug for Documents {
    /// Shows names and sizes: a document may have what a log must not show.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(name, bytes)| (name, bytes.len()))).finish()
    }
}

/// The description of a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RevisionInfo {
    /// Number, from 1 on.
    pub number: u64,
    /// Digest of all documents, to compare them: XXH3, not against malice.
    pub digest: u64,
    /// The one who made the change, as they named themselves.
    pub author: String,
    /// Reason of the change.
    pub reason: String,
    /// Time of the change, by the publisher's clock.
    pub at: Timestamp,
    /// Number of the revision whose documents a rollback has published anew.
    pub source: Option<u64>,
}

/// The reason for which stored bytes are no revision.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Damage {
    Unreadable,
    WrongDigest,
}

/// Number of the stored form.
const FORM: u64 = 1;

/// Returns the stored form of a revision.
pub(super) fn encode(info: &RevisionInfo, documents: &Documents) -> Bytes {
    let mut out = Out::of_form(FORM);
    out.number(info.number);
    out.number(info.digest);
    out.number(info.at.as_millis());
    out.text(&info.author);
    out.text(&info.reason);
    out.option(info.source, Out::number);
    documents.encode(&mut out);
    out.into_bytes()
}

/// Reads a revision of this number.
pub(super) fn decode(number: u64, bytes: Bytes) -> Result<(RevisionInfo, Documents), Damage> {
    let read = |input: &mut In| {
        let (found, digest) = (input.number()?, input.number()?);
        let at = Timestamp::from_millis(input.number()?);
        let (author, reason, source) = (input.text()?, input.text()?, input.option(In::number)?);
        let documents = Documents::decode(input)?;
        let info = RevisionInfo { number, digest, author, reason, at, source };
        (found == number).then_some((info, documents))
    };
    let (info, documents) = In::open(bytes, FORM, read).map_err(|_| Damage::Unreadable)?;
    if documents.digest() == info.digest { Ok((info, documents)) } else { Err(Damage::WrongDigest) }
}

/// Returns the field that an error, or one of its sources, names: of a setting, or of a document.
/// The text of an error may have values, and is shown nowhere.
pub(super) fn field_of(error: &BoxError) -> Option<String> {
    let mut error: Option<&(dyn std::error::Error + 'static)> = Some(&**error);
    while let Some(known) = error {
        if let Some(error) = known.downcast_ref::<ConfigError>() {
            return Some(error.field().to_owned());
        }
        if let Some(DocumentError::Missing(name) | DocumentError::NotText(name)) = known.downcast_ref() {
            return Some(name.clone());
        }
        error = known.source();
    }
    None
}
