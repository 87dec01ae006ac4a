//! The checks of a copy, which the client cannot change.
use std::{fmt, future::poll_fn, pin::pin, sync::Arc, task::Poll};

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::{Attribute, GetOptions, GetResult, ObjectStore, path::Path};

use super::{
    RejectReason, StoreKind, UploadError, Uploads,
    component::Inner,
    row::{Upload, UploadResult},
};
use crate::{
    caught::Caught,
    port::{AskError, BoxFuture, ask},
    token::crypto::{Sha256, to_base64},
};

/// Inspection of a copy.
pub(super) type Inspect = Box<dyn Fn(Candidate) -> BoxFuture<'static, Result<Inspection, String>> + Send + Sync>;

/// Result of an inspection.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Inspection {
    /// The copy is accepted.
    Accept,
    /// The upload is rejected for ever. The text is for its client; 256 characters of it are kept.
    Reject(String),
}

/// Most characters of the text of an inspection.
const MAX_DETAIL: usize = 256;

/// A copy that is inspected. Its size, type and digest are as declared.
#[derive(Clone)]
pub struct Candidate {
    objects: Arc<dyn ObjectStore>,
    path: Path,
    upload: Upload,
}

impl Candidate {
    /// Returns the path of the copy.
    pub fn path(&self) -> &str {
        self.path.as_ref()
    }

    /// Returns the tag of the upload.
    pub fn tag(&self) -> &str {
        &self.upload.tag
    }

    /// Returns the size in bytes.
    pub const fn bytes(&self) -> u64 {
        self.upload.bytes
    }

    /// Returns the declared type.
    pub fn content_type(&self) -> &str {
        &self.upload.content_type
    }

    /// Reads the copy into memory.
    ///
    /// # Errors
    /// Those of the object store.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn read(&self) -> object_store::Result<Bytes> {
        self.objects.get_opts(&self.path, GetOptions::default()).await?.bytes().await
    }
}

impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate").field("path", &self.path).field("upload", &self.upload).finish_non_exhaustive()
    }
}

impl Uploads {
    /// Checks a copy. `None` if it is gone, since another completion has ended.
    pub(super) async fn judge(&self, upload: &Upload, copy: &str) -> Result<Option<UploadResult>, UploadError> {
        let Inner { objects, config, .. } = &*self.0;
        let path = self.copied(copy);
        let Some(found) = self.object(objects.get_opts(&path, GetOptions::default())).await? else {
            return Ok(None);
        };
        if found.meta.size != upload.bytes {
            return Ok(Some(UploadResult::rejected(RejectReason::Size)));
        }
        let content_type = found.attributes.get(&Attribute::ContentType).map(|value| value.as_ref().to_owned());
        // Some stores with signed headers do not return the type.
        let is_type = content_type.map_or(config.kind != StoreKind::Azure, |found| found == upload.content_type);
        if !is_type {
            return Ok(Some(UploadResult::rejected(RejectReason::ContentType)));
        }
        let Some((bytes, sha256)) = self.digest(found).await? else { return Ok(None) };
        if bytes != upload.bytes {
            return Ok(Some(UploadResult::rejected(RejectReason::Size)));
        }
        if upload.sha256.as_ref().is_some_and(|declared| *declared != sha256) {
            return Ok(Some(UploadResult::rejected(RejectReason::Digest)));
        }
        let candidate = Candidate { objects: objects.clone(), path, upload: upload.clone() };
        Ok(Some(match self.inspected(candidate).await? {
            Inspection::Accept => UploadResult::Accepted { copy: copy.to_owned(), sha256 },
            Inspection::Reject(text) => {
                let detail = text.chars().take(MAX_DETAIL).collect();
                UploadResult::Rejected { reason: RejectReason::Inspection, detail }
            }
        }))
    }

    /// Reads a copy, and returns its size and digest.
    async fn digest(&self, found: GetResult) -> Result<Option<(u64, String)>, UploadError> {
        let (mut body, mut digest, mut bytes) = (found.into_stream(), Sha256::new(), 0);
        loop {
            match self.object(body.try_next()).await? {
                Some(Some(chunk)) => {
                    digest.update(&chunk);
                    bytes += chunk.len() as u64;
                }
                Some(None) => return Ok(Some((bytes, to_base64(&digest.finish())))),
                None => return Ok(None),
            }
        }
    }

    async fn inspected(&self, candidate: Candidate) -> Result<Inspection, UploadError> {
        let Inner { inspect, clock, config, .. } = &*self.0;
        let Some(inspect) = inspect else { return Ok(Inspection::Accept) };
        let call = async {
            let (mut call, mut candidate) = (pin!(Caught::new()), Some(candidate));
            let begun = poll_fn(|cx| {
                let candidate = candidate.take();
                Poll::Ready(candidate.and_then(|candidate| call.as_mut().begin(cx, || inspect(candidate))))
            });
            let first = begun.await;
            let result = match first {
                Some(result) => result,
                None => call.await,
            };
            result.unwrap_or_else(Err)
        };
        match ask(clock, config.inspect_timeout, call).await {
            Ok(inspection) => Ok(inspection),
            Err(AskError::Failed(error)) => Err(UploadError::Inspection(error)),
            Err(AskError::TimedOut) => Err(UploadError::Inspection("timed out".to_owned())),
        }
    }
}
