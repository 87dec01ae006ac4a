//! The manifest of a release: its files, and the names of their objects.
use bytes::Bytes;

use crate::{
    record::Unreadable,
    sha256::{Digest, sha256},
    time::Timestamp,
    wire::{In, Out},
};

/// Number of the stored form.
const FORM: u64 = 1;

/// One release, as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Manifest {
    pub(super) number: u64,
    /// Time at which it was published. It is not before that of the release before.
    pub(super) at: Timestamp,
    /// Number of the release that a rollback has published anew.
    pub(super) source: Option<u64>,
    pub(super) files: Vec<SiteFile>,
}

/// A file of a release, with the compressed forms that came beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SiteFile {
    pub(super) path: String,
    /// Digits of the object's name; `None` if it has the bundler's name.
    pub(super) tag: Option<u64>,
    pub(super) is_entry_point: bool,
    pub(super) plain: Content,
    pub(super) brotli: Option<Content>,
    pub(super) gzip: Option<Content>,
}

/// The content of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) digest: Digest,
    pub(super) size: u64,
}

/// Endings of the compressed forms.
pub(super) const BROTLI: &str = ".br";
pub(super) const GZIP: &str = ".gz";

impl Content {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self { digest: sha256(bytes), size: bytes.len() as u64 }
    }
}

impl SiteFile {
    /// Describes a file. Its tag covers the compressed forms: another compressor of the same file
    /// makes another name.
    pub(super) fn new(
        path: &str,
        (is_immutable, is_entry_point): (bool, bool),
        (plain, brotli, gzip): (Content, Option<Content>, Option<Content>),
    ) -> Self {
        let tag = if brotli.is_none() && gzip.is_none() {
            plain.digest
        } else {
            let mut all = plain.digest.to_vec();
            for form in [brotli, gzip] {
                all.push(u8::from(form.is_some()));
                all.extend(form.map(|form| form.digest).into_iter().flatten());
            }
            sha256(&all)
        };
        let tag = u64::from_be_bytes([tag[0], tag[1], tag[2], tag[3], tag[4], tag[5], tag[6], tag[7]]);
        Self { path: path.to_owned(), tag: (!is_immutable).then_some(tag), is_entry_point, plain, brotli, gzip }
    }

    /// Returns the name of the object of the plain form.
    pub(super) fn key(&self) -> String {
        let Some(tag) = self.tag else { return self.path.clone() };
        let name = self.path.rfind('/').map_or(0, |slash| slash + 1);
        match self.path[name..].rfind('.').filter(|dot| *dot > 0) {
            Some(dot) => format!("{}.{tag:016x}{}", &self.path[..name + dot], &self.path[name + dot..]),
            None => format!("{}.{tag:016x}", self.path),
        }
    }

    /// Returns the ending and the content of each form.
    pub(super) fn forms(&self) -> impl Iterator<Item = (&'static str, Content)> {
        let compressed = [(BROTLI, self.brotli), (GZIP, self.gzip)];
        let compressed = compressed.into_iter().filter_map(|(ending, form)| Some((ending, form?)));
        std::iter::once(("", self.plain)).chain(compressed)
    }

    /// Returns the names and contents of the objects.
    pub(super) fn objects(&self) -> impl Iterator<Item = (String, Content)> {
        let key = self.key();
        self.forms().map(move |(ending, content)| (format!("{key}{ending}"), content))
    }
}

impl Manifest {
    /// Returns the names and contents of all objects.
    pub(super) fn objects(&self) -> impl Iterator<Item = (String, Content)> + '_ {
        self.files.iter().flat_map(SiteFile::objects)
    }

    pub(super) fn encode(&self) -> Bytes {
        let content = |out: &mut Out, content: Content| {
            out.bytes(&content.digest);
            out.number(content.size);
        };
        let mut out = Out::of_form(FORM);
        out.number(self.number);
        out.number(self.at.as_millis());
        out.option(self.source, Out::number);
        out.list(self.files.iter(), |out, file| {
            out.text(&file.path);
            out.option(file.tag, Out::number);
            out.number(u64::from(file.is_entry_point));
            content(out, file.plain);
            out.option(file.brotli, content);
            out.option(file.gzip, content);
        });
        out.into_bytes()
    }

    /// Reads the release of this number.
    pub(super) fn decode(number: u64, bytes: Bytes) -> Result<Self, Unreadable> {
        let content = |input: &mut In| {
            let digest = input.bytes()?[..].try_into().ok()?;
            Some(Content { digest, size: input.number()? })
        };
        let file = |input: &mut In| {
            Some(SiteFile {
                path: input.text()?,
                tag: input.option(In::number)?,
                is_entry_point: input.number()? == 1,
                plain: content(input)?,
                brotli: input.option(content)?,
                gzip: input.option(content)?,
            })
        };
        In::open(bytes, FORM, |input| {
            let found = input.number()?;
            let (at, source) = (Timestamp::from_millis(input.number()?), input.option(In::number)?);
            let files = input.list(file)?;
            (found == number).then_some(Self { number, at, source, files })
        })
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;

    fn file(path: &str, brotli: Option<&[u8]>) -> SiteFile {
        SiteFile::new(path, (false, false), (Content::of(b"x"), brotli.map(Content::of), None))
    }

    #[test]
    fn an_object_has_sixteen_digits_of_its_digest_before_its_ending() {
        // SHA-256 of `x` begins with 2d711642b726b044.
        for (path, key) in [
            ("app.js", "app.2d711642b726b044.js"),
            ("a.b/c.min.css", "a.b/c.min.2d711642b726b044.css"),
            ("a.b/LICENSE", "a.b/LICENSE.2d711642b726b044"),
            (".nojekyll", ".nojekyll.2d711642b726b044"),
        ] {
            assert_eq!(file(path, None).key(), key);
        }
    }

    #[test]
    fn another_compressor_of_the_same_file_makes_another_name() {
        let keys = [None, Some(&b"1"[..]), Some(b"2")].map(|brotli| file("app.js", brotli).key());
        assert!(keys[0] != keys[1] && keys[1] != keys[2], "{keys:?}");
        let objects: Vec<_> = file("app.js", Some(b"1")).objects().map(|(key, _)| key).collect();
        assert_eq!(objects, [keys[1].clone(), format!("{}.br", keys[1])]);
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written_and_damage_is_noticed() {
        let files = vec![
            file("app.js", Some(b"1")),
            SiteFile::new("i.html", (false, true), (Content::of(b"i"), None, Some(Content::of(b"z")))),
            SiteFile::new("assets/a.js", (true, false), (Content::of(b"a"), None, None)),
        ];
        let manifest = Manifest { number: 7, at: Timestamp::from_millis(5), source: Some(3), files };
        let bytes = manifest.encode();
        assert_eq!(Manifest::decode(7, bytes.clone()), Ok(manifest));
        assert_eq!(Manifest::decode(8, bytes.clone()), Err(Unreadable::Foreign));
        for end in 0..bytes.len() {
            assert_eq!(Manifest::decode(7, bytes.slice(..end)), Err(Unreadable::Foreign));
        }
    }
}
