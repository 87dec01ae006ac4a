//! The beginning of an upload.
use std::fmt;

use object_store::signer::{HeaderName, HeaderValue, Method, SignedUrlOptions};

use super::{
    StoreKind, UploadConfig, UploadError, UploadEvent as Event, Uploads,
    component::Inner,
    row::{Share, Upload},
};
use crate::{
    config::{ConfigError, Name, require},
    sha256::base64,
    time::Timestamp,
    token::crypto::{random_id, to_base64},
};

/// The promise of a client about an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    content_type: String,
    bytes: u64,
    sha256: Option<[u8; 32]>,
}

impl Declared {
    /// Declares a type and a length in bytes.
    pub fn new(content_type: impl Into<String>, bytes: u64) -> Self {
        Self { content_type: content_type.into(), bytes, sha256: None }
    }

    /// Declares the SHA-256 of the content.
    #[must_use]
    pub const fn sha256(mut self, digest: [u8; 32]) -> Self {
        self.sha256 = Some(digest);
        self
    }

    fn check(&self, config: &UploadConfig) -> Result<(), UploadError> {
        let is_type = (1..=MAX_TYPE).contains(&self.content_type.len())
            && self.content_type.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
            && self.content_type.trim() == self.content_type;
        require(is_type, "content_type", "must be 1 to 255 printable characters of ASCII")?;
        match self.bytes > config.max_bytes {
            true => Err(UploadError::TooLarge { max: config.max_bytes }),
            false => Ok(()),
        }
    }

    /// Returns the headers that a client sends, and `true` if the URL binds them.
    fn headers(&self, kind: StoreKind) -> (Vec<(&'static str, String)>, bool) {
        let mut headers = vec![("content-type", self.content_type.clone())];
        let is_bound = match kind {
            StoreKind::S3 => {
                headers.push(("if-none-match", "*".to_owned()));
                let digest = self.sha256.as_ref().map(|digest| base64(digest));
                headers.extend(digest.map(|digest| ("x-amz-checksum-sha256", digest)));
                true
            }
            StoreKind::Gcs => {
                headers.push(("x-goog-if-generation-match", "0".to_owned()));
                headers.push(("x-goog-content-length-range", format!("{0},{0}", self.bytes)));
                true
            }
            StoreKind::Azure => {
                headers.push(("x-ms-blob-type", "BlockBlob".to_owned()));
                false
            }
        };
        (headers, is_bound)
    }
}

/// Longest type, and longest tag, in bytes.
const MAX_TYPE: usize = 255;
const MAX_TAG: usize = 128;

/// The right to upload one object, for the client. Its URL is in no event and no text of this type.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ticket {
    /// The id, by which the upload is completed.
    pub id: String,
    /// The URL for a `PUT`.
    pub url: String,
    /// The headers to send with it, in small letters.
    pub headers: Vec<(&'static str, String)>,
    /// Time at which the URL expires.
    pub expires_at: Timestamp,
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("id", &self.id).field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

impl Uploads {
    /// Begins an upload, whose bytes are outstanding for this tag until it and its URL have ended.
    /// The URL writes one new object.
    ///
    /// # Errors
    /// If the declaration breaks a rule, the tag has too many bytes outstanding, or a store fails.
    ///
    /// # Cancel safety
    /// Its bytes may be outstanding until a sweep ends it.
    pub async fn begin(&self, tag: impl Into<String>, declared: Declared) -> Result<Ticket, UploadError> {
        let Inner { rows, config, clock, .. } = &*self.0;
        let tag = tag.into();
        require((1..=MAX_TAG).contains(&tag.len()), "tag", "must have 1 to 128 bytes")?;
        declared.check(config)?;
        let id = random_id().ok_or(UploadError::NoRandomness)?;
        let (expires_at, failed) = (clock.wall() + config.url_lifetime, self.store_failed());
        // Nobody has the URL before the upload is recorded.
        let (url, headers) = self.sign(&id, &declared).await?;
        // The time of the signature lies between both times.
        let now = clock.wall();
        let until = (now + config.url_lifetime).max(expires_at).as_millis();
        let share = Share { bytes: declared.bytes, until };
        let upload = Upload {
            tag,
            bytes: declared.bytes,
            content_type: declared.content_type,
            sha256: declared.sha256.map(|digest| to_base64(&digest)),
            until,
            copies: Vec::new(),
            tried: 0,
            is_stale: false,
            ended: None,
        };
        let version = rows.insert(&id, &upload).await.map_err(&failed)?;
        let (tag, bytes) = (Name::from(&upload.tag), upload.bytes);
        let taken = rows.take(&upload.tag, (id.as_str(), share, config.max_outstanding), (now, config.grace)).await;
        if let Err(room) = taken.map_err(&failed)? {
            if let Some(version) = version {
                // If that fails, a sweep ends it.
                let _ = rows.remove(&id, version).await;
            }
            self.send(|| Event::Limited { tag, bytes });
            let wait = room.as_millis().saturating_sub(now.as_millis());
            let retry_after = std::time::Duration::from_millis(wait).max(config.retry_after);
            return Err(UploadError::Limited { retry_after });
        }
        self.send(|| Event::Begun { id: Name::from(&id), tag, bytes });
        Ok(Ticket { id, url, headers, expires_at })
    }

    async fn sign(&self, id: &str, declared: &Declared) -> Result<(String, Vec<(&'static str, String)>), UploadError> {
        let Inner { signer, config, .. } = &*self.0;
        let (headers, is_bound) = declared.headers(config.kind);
        let mut options = SignedUrlOptions::new();
        for &(name, ref value) in headers.iter().filter(|_| is_bound) {
            let rule = "must be 1 to 255 printable characters of ASCII";
            let value = HeaderValue::from_str(value).map_err(|_| ConfigError::new("content_type", rule))?;
            options = options.with_signed_header(HeaderName::from_static(name), value);
        }
        let path = self.incoming(id);
        let signed = signer.signed_url_opts(Method::PUT, &path, config.url_lifetime, &options);
        let url = self.object(signed).await?.ok_or(UploadError::NotUploaded)?;
        Ok((url.into(), headers))
    }
}
