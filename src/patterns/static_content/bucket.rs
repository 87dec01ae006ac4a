//! Requests to the bucket.
use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use object_store::{
    Attribute, Attributes, Error, GetOptions, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, path::Path,
};

use super::{
    SiteError,
    cache::IMMUTABLE,
    manifest::{BROTLI, Content, GZIP},
};
use crate::{port::within, sha256::sha256, time::Clock};

/// Number of time limits that an upload or a download may take.
const TRANSFER: u32 = 60;

/// A bucket with time limits.
pub(super) struct Bucket {
    store: Arc<dyn ObjectStore>,
    clock: Clock,
    limit: Duration,
}

/// Result of a look at an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    Absent,
    OfSize(u64),
}

impl Bucket {
    pub(super) fn new(store: Arc<dyn ObjectStore>, clock: Clock, limit: Duration) -> Self {
        Self { store, clock, limit }
    }

    async fn ask<T>(
        &self,
        key: &str,
        limits: u32,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<Result<T, Error>, SiteError> {
        let answer = within(&self.clock, self.limit.saturating_mul(limits), request).await;
        answer.ok_or_else(|| SiteError::BucketTimedOut(key.to_owned()))
    }

    /// Looks at an object by HEAD.
    pub(super) async fn head(&self, key: &str) -> Result<Seen, SiteError> {
        let path = path(key)?;
        let options = GetOptions::new().with_head(true);
        match self.ask(key, 1, self.store.get_opts(&path, options)).await? {
            Ok(found) => Ok(Seen::OfSize(found.meta.size)),
            Err(Error::NotFound { .. }) => Ok(Seen::Absent),
            Err(error) => Err(SiteError::bucket(key, error)),
        }
    }

    /// Returns `true` if the object has this content, by reading it; `None` if it is absent.
    pub(super) async fn holds(&self, key: &str, content: Content) -> Result<Option<bool>, SiteError> {
        let path = path(key)?;
        let read = async {
            let found = self.store.get_opts(&path, GetOptions::new()).await?;
            // Somebody else's may be of any size.
            let is_alike = found.meta.size == content.size;
            Ok(is_alike && sha256(&found.bytes().await?) == content.digest)
        };
        match self.ask(key, TRANSFER, read).await? {
            Ok(is_same) => Ok(Some(is_same)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(SiteError::bucket(key, error)),
        }
    }

    /// Creates an object with the headers that it is to be served with. Returns `false` if it
    /// exists.
    pub(super) async fn create(&self, key: &str, bytes: &Bytes) -> Result<bool, SiteError> {
        let path = path(key)?;
        let mut options = PutOptions { mode: PutMode::Create, attributes: headers(key), ..PutOptions::default() };
        loop {
            let put = self.store.put_opts(&path, bytes.clone().into(), options.clone());
            match self.ask(key, TRANSFER, put).await? {
                Ok(_) => return Ok(true),
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => return Ok(false),
                // A folder keeps no headers: its server adds them.
                Err(Error::NotImplemented { .. } | Error::NotSupported { .. }) if !options.attributes.is_empty() => {
                    options.attributes = Attributes::new();
                }
                Err(Error::NotImplemented { .. } | Error::NotSupported { .. }) => return Err(SiteError::NoCreateOnly),
                Err(error) => return Err(SiteError::bucket(key, error)),
            }
        }
    }

    /// Deletes an object. Returns `false` if it was absent, as far as the bucket tells.
    pub(super) async fn delete(&self, key: &str) -> Result<bool, SiteError> {
        let path = path(key)?;
        match self.ask(key, 1, self.store.delete(&path)).await? {
            Ok(()) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(SiteError::bucket(key, error)),
        }
    }
}

fn path(key: &str) -> Result<Path, SiteError> {
    Path::parse(key).map_err(|error| SiteError::bucket(key, error.into()))
}

/// Returns the headers of an object, for a bucket that is served as it is.
fn headers(key: &str) -> Attributes {
    let mut headers = Attributes::new();
    headers.insert(Attribute::CacheControl, IMMUTABLE.into());
    let (plain, encoding) = match (key.strip_suffix(BROTLI), key.strip_suffix(GZIP)) {
        (Some(plain), _) => (plain, Some("br")),
        (_, Some(plain)) => (plain, Some("gzip")),
        _ => (key, None),
    };
    // A file that only ends so is served as a file of its type.
    if let (Some(encoding), Some(_)) = (encoding, content_type(plain)) {
        headers.insert(Attribute::ContentEncoding, encoding.into());
    }
    if let Some(content_type) = content_type(plain) {
        headers.insert(Attribute::ContentType, content_type.into());
    }
    headers
}

/// Returns the type of a file by its ending, for the types that a browser must be told.
fn content_type(path: &str) -> Option<&'static str> {
    let ending = path.rsplit('/').next()?.rsplit_once('.')?.1;
    Some(match ending {
        "html" | "htm" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" | "map" => "application/json",
        "webmanifest" => "application/manifest+json",
        "xml" => "application/xml",
        "txt" => "text/plain; charset=utf-8",
        "wasm" => "application/wasm",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "avif" => "image/avif",
        "ico" => "image/x-icon",
        "woff" => "font/woff",
        "woff2" => "font/woff2",
        "mp4" => "video/mp4",
        "webm" => "video/webm",
        "pdf" => "application/pdf",
        _ => return None,
    })
}
