//! The completion of an upload.
//!
//! Its steps, each recorded before it is taken: the name of a copy is recorded, the object is
//! copied there and the copy is checked; the result is recorded; everything that was not accepted
//! is deleted. Any number of completions do this at the same time, each with a copy of its own:
//! the first result that is recorded holds. Nothing is deleted before it.
use object_store::{CopyOptions, GetOptions, ObjectStore, path::Path};

use super::{
    RejectReason, UploadError, UploadEvent as Event, Uploads,
    component::Inner,
    row::{Ended, MAX_COPIES, Upload, UploadResult},
};
use crate::{
    config::Name,
    store::Version,
    time::Timestamp,
    token::crypto::{from_base64, random_id},
};

/// An accepted upload.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Accepted {
    /// The id of the upload.
    pub id: String,
    /// The tag of the upload.
    pub tag: String,
    /// The path of the object, which no URL can write. Objects beside it may not be accepted.
    pub path: String,
    /// The size in bytes.
    pub bytes: u64,
    /// The type that was declared.
    pub content_type: String,
    /// The SHA-256 of the content.
    pub sha256: [u8; 32],
}

/// The course of one attempt.
enum Attempt {
    /// Its result was recorded, or the upload was changed meanwhile: read it again.
    ReadAgain,
    NotUploaded,
}

impl Uploads {
    /// Completes an upload: copies the object, checks the copy, and accepts or rejects it for ever.
    /// Call it when a client reports the end of its upload, and again after any error. Each call
    /// has the same result.
    ///
    /// # Errors
    /// The reason for which the upload is not accepted. [`NotUploaded`](UploadError::NotUploaded),
    /// failures of the stores and of the inspection are passing.
    ///
    /// # Cancel safety
    /// The upload is accepted, rejected or neither: another call goes on.
    pub async fn complete(&self, id: &str) -> Result<Accepted, UploadError> {
        self.completed(id, false).await
    }

    /// Completes an upload. If it `is_over`, its end is that nothing was uploaded.
    pub(super) async fn completed(&self, id: &str, is_over: bool) -> Result<Accepted, UploadError> {
        let Inner { rows, .. } = &*self.0;
        if from_base64(id).is_none_or(|bits| bits.len() != 16) {
            return Err(UploadError::Unknown);
        }
        let failed = self.store_failed();
        loop {
            let Some((upload, version)) = rows.upload(id).await.map_err(&failed)? else {
                let kept = rows.result(id).await.map_err(&failed)?;
                return self.result(id, &kept.ok_or(UploadError::Unknown)?);
            };
            if let Some(ended) = &upload.ended {
                if !ended.is_clean {
                    // A sweep does it if this fails: the result holds.
                    let _ = self.clean(id, &upload, version).await;
                }
                return self.result(id, &upload);
            }
            if let Attempt::NotUploaded = self.attempt(id, upload, version, is_over).await? {
                return Err(UploadError::NotUploaded);
            }
        }
    }

    async fn attempt(
        &self,
        id: &str,
        mut upload: Upload,
        version: Version,
        is_over: bool,
    ) -> Result<Attempt, UploadError> {
        let Inner { rows, objects, clock, .. } = &*self.0;
        let (path, failed) = (self.incoming(id), self.store_failed());
        let head = self.object(objects.get_opts(&path, GetOptions::new().with_head(true))).await?;
        let reason = match head.map(|found| found.meta.size) {
            None if is_over => Some(RejectReason::Missing),
            None => {
                // Another completion may have ended, and deleted it.
                let is_open = rows.upload(id).await.map_err(&failed)?.is_some_and(|(now, _)| now.ended.is_none());
                return Ok(if is_open { Attempt::NotUploaded } else { Attempt::ReadAgain });
            }
            Some(size) if size != upload.bytes => Some(RejectReason::Size),
            Some(_) => None,
        };
        if let Some(reason) = reason {
            self.end(id, upload, version, UploadResult::rejected(reason)).await?;
            return Ok(Attempt::ReadAgain);
        }
        if upload.copies.len() >= MAX_COPIES {
            self.make_room(id, upload, version).await?;
            return Ok(Attempt::ReadAgain);
        }
        let copy = random_id().ok_or(UploadError::NoRandomness)?;
        upload.copies.push(copy.clone());
        upload.tried = clock.wall().as_millis();
        if rows.replace(id, &upload, version).await.map_err(&failed)?.is_none() {
            return Ok(Attempt::ReadAgain);
        }
        if self.object(objects.copy_opts(&path, &self.copied(&copy), CopyOptions::new())).await?.is_none() {
            return Ok(Attempt::ReadAgain);
        }
        let result = match self.judge(&upload, &copy).await {
            Ok(Some(result)) => result,
            Ok(None) => return Ok(Attempt::ReadAgain),
            Err(error) => {
                // If that fails, it is deleted with all others at the end.
                let _ = self.discard(id, &copy).await;
                return Err(error);
            }
        };
        self.end_by(id, &copy, result).await?;
        Ok(Attempt::ReadAgain)
    }

    /// Makes room for the names of further copies: those whose requests were not answered are
    /// forgotten once nothing of them can arrive any more. Before that they are recorded as stale,
    /// so that no completion that still judges one of them ends by it.
    async fn make_room(&self, id: &str, mut upload: Upload, mut version: Version) -> Result<(), UploadError> {
        let Inner { rows, clock, config, .. } = &*self.0;
        let failed = self.store_failed();
        if Timestamp::from_millis(upload.tried) + config.grace > clock.wall() {
            return Err(UploadError::Objects { error: None, retry_after: config.retry_after });
        }
        if !upload.is_stale {
            upload.is_stale = true;
            let Some(next) = rows.replace(id, &upload, version).await.map_err(&failed)? else { return Ok(()) };
            version = next;
        }
        for copy in std::mem::take(&mut upload.copies) {
            self.delete(self.copied(&copy)).await?;
        }
        upload.is_stale = false;
        rows.replace(id, &upload, version).await.map_err(&failed)?;
        Ok(())
    }

    /// Deletes a copy that has no result, and forgets its name: its request has ended.
    async fn discard(&self, id: &str, copy: &str) -> Result<(), UploadError> {
        let (rows, failed) = (&self.0.rows, self.store_failed());
        self.delete(self.copied(copy)).await?;
        while let Some((mut upload, version)) = rows.upload(id).await.map_err(&failed)? {
            upload.copies.retain(|other| other != copy);
            if upload.ended.is_some() || rows.replace(id, &upload, version).await.map_err(&failed)?.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Records the result of a copy, unless another one was recorded: then the copy is deleted.
    async fn end_by(&self, id: &str, copy: &str, result: UploadResult) -> Result<(), UploadError> {
        let (rows, failed) = (&self.0.rows, self.store_failed());
        let ended = loop {
            // Other completions may have recorded copies of theirs.
            match rows.upload(id).await.map_err(&failed)? {
                // Its name was forgotten, since it took too long.
                Some((upload, _)) if upload.ended.is_none() && !upload.may_end_by(copy) => break None,
                Some((upload, version)) if upload.ended.is_none() => {
                    if self.end(id, upload, version, result.clone()).await? {
                        return Ok(());
                    }
                }
                Some((upload, _)) => break Some(upload),
                None => break rows.result(id).await.map_err(&failed)?,
            }
        };
        // It may have been made after everything else was deleted.
        let is_loser = ended.is_none_or(|upload| upload.losers().any(|loser| loser == copy));
        if is_loser { self.delete(self.copied(copy)).await } else { Ok(()) }
    }

    /// Records a result. Returns `false` if the upload was changed meanwhile.
    async fn end(
        &self,
        id: &str,
        mut upload: Upload,
        version: Version,
        result: UploadResult,
    ) -> Result<bool, UploadError> {
        let Inner { rows, clock, .. } = &*self.0;
        let at = clock.wall().as_millis();
        let ended = upload.ended.insert(Ended { result, at, is_clean: false }).result.clone();
        if rows.replace(id, &upload, version).await.map_err(self.store_failed())?.is_none() {
            return Ok(false);
        }
        let (id, tag, bytes) = (Name::from(id), Name::from(&upload.tag), upload.bytes);
        self.send(|| match ended {
            UploadResult::Accepted { copy, .. } => {
                Event::Accepted { id, tag, bytes, path: Name::from(String::from(self.copied(&copy))) }
            }
            UploadResult::Rejected { reason, .. } => Event::Rejected { id, tag, reason },
        });
        Ok(true)
    }

    /// Deletes what was not accepted, and gives the bytes back if the URL can write nothing any
    /// more.
    pub(super) async fn clean(&self, id: &str, upload: &Upload, version: Version) -> Result<(), UploadError> {
        let Inner { rows, clock, .. } = &*self.0;
        let failed = self.store_failed();
        // Before the deletion: afterwards it may write again.
        let has_url_ended = upload.has_url_ended(clock.wall());
        self.delete_rest(id, upload).await?;
        if !has_url_ended {
            return Ok(());
        }
        rows.give_back(&upload.tag, id).await.map_err(&failed)?;
        let mut upload = upload.clone();
        if let Some(ended) = &mut upload.ended {
            ended.is_clean = true;
        }
        rows.replace(id, &upload, version).await.map_err(&failed)?;
        Ok(())
    }

    /// Deletes what the client wrote, and the copies that were not accepted.
    pub(super) async fn delete_rest(&self, id: &str, upload: &Upload) -> Result<(), UploadError> {
        self.delete(self.incoming(id)).await?;
        for copy in upload.losers() {
            self.delete(self.copied(copy)).await?;
        }
        Ok(())
    }

    async fn delete(&self, path: Path) -> Result<(), UploadError> {
        let objects = &self.0.objects;
        self.object(object_store::ObjectStoreExt::delete(objects, &path)).await?;
        Ok(())
    }

    fn result(&self, id: &str, upload: &Upload) -> Result<Accepted, UploadError> {
        let Upload { tag, bytes, content_type, .. } = upload;
        match upload.ended.as_ref().map(|ended| &ended.result) {
            Some(UploadResult::Accepted { copy, sha256 }) => Ok(Accepted {
                id: id.to_owned(),
                tag: tag.clone(),
                path: self.copied(copy).into(),
                bytes: *bytes,
                content_type: content_type.clone(),
                sha256: from_base64(sha256).and_then(|digest| digest.try_into().ok()).unwrap_or_default(),
            }),
            Some(UploadResult::Rejected { reason, detail }) => {
                Err(UploadError::Rejected { reason: *reason, detail: detail.clone() })
            }
            None => Err(UploadError::Unknown),
        }
    }
}
