//! The encrypted files of age (age-encryption.org/v1): written for X25519 recipients or a passphrase,
//! and read with identities or the passphrase.
//!
//! A header wraps the file's key once for each recipient; the content is ChaCha20-Poly1305 in chunks of
//! 64 KiB, each authenticated before it is given on. Must not know what is encrypted.

mod bech32;
mod header;
mod keys;
#[cfg(test)]
mod referee_tests;
mod stanza;
mod stream;

use std::io::{BufRead, BufReader, Read, Write};

pub use keys::{Identities, Recipients, is_identity};
pub use stream::{Decrypted, Encrypting};

use imgctl_base::error::{IoContext as _, Result};

/// Writes the header for `recipients` to `target`, and returns the writer of the content.
/// [`Encrypting::finish`] must be called at its end: without it, the file is truncated and cannot be
/// read.
pub fn encrypt<W: Write>(mut target: W, recipients: &Recipients) -> Result<Encrypting<W>> {
    let key = keys::FileKey::generate()?;
    let header = header::write(&recipients.wrap(&key)?, &key)?;
    target.write_all(header.as_bytes()).doing(|| "cannot write the age header".to_owned())?;
    Encrypting::new(target, &key)
}

/// Reads the header with one of `identities`, and returns the reader of the content. Content that is
/// truncated or changed is an error of the reader.
pub fn decrypt<R: Read>(source: R, identities: &Identities) -> Result<Decrypted<BufReader<R>>> {
    let mut source = BufReader::with_capacity(1 << 16, source);
    let header = header::read(&mut source)?;
    let key = identities.unwrap(&header.stanzas)?;
    header.verify(&key)?;
    Decrypted::new(source, &key)
}

/// Reports whether a file begins as one of age does.
pub fn is_encrypted(source: &mut impl BufRead) -> bool {
    source.fill_buf().is_ok_and(|start| start.starts_with(header::VERSION.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::error::Kind;
    use imgctl_base::secret::Secret;

    fn sealed(content: &[u8], recipients: &Recipients) -> Vec<u8> {
        let mut file = Vec::new();
        let mut writer = encrypt(&mut file, recipients).unwrap();
        writer.write_all(content).unwrap();
        writer.finish().unwrap();
        file
    }

    fn opened(file: &[u8], identities: &Identities) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        let mut reader = decrypt(file, identities)?;
        reader.read_to_end(&mut content).doing(|| "read".to_owned())?;
        Ok(content)
    }

    /// The identity and recipient of age's own documentation.
    const IDENTITY: &str =
        "AGE-SECRET-KEY-1GFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPQ4EGAEX";
    const RECIPIENT: &str = "age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj";

    #[test]
    fn what_is_sealed_opens_for_its_identity_alone() {
        let recipients = Recipients::parse(RECIPIENT, "r").unwrap();
        let identity =
            Identities::parse(&Secret::new(format!("# mine\n{IDENTITY}\n")), "i").unwrap();
        let other = Identities::generate().unwrap();
        for length in [0, 1, 65_535, 65_536, 65_537, 200_000] {
            let content: Vec<u8> = (0..length).map(|at: u32| at.to_le_bytes()[0]).collect();
            let file = sealed(&content, &recipients);
            assert_eq!(opened(&file, &identity).unwrap(), content);
            let error = opened(&file, &other.1).unwrap_err();
            assert_eq!(error.kind(), Kind::Denied, "{error}");
            // Cut at any place, or changed in any place.
            for at in [0, 10, 60, file.len() / 2, file.len() - 17, file.len() - 1] {
                assert!(opened(&file[..at], &identity).is_err(), "{length} cut at {at}");
                let mut edited = file.clone();
                edited[at] ^= 1;
                assert!(opened(&edited, &identity).is_err(), "{length} edited at {at}");
            }
            let mut longer = file.clone();
            longer.push(0);
            assert!(opened(&longer, &identity).is_err());
        }
    }

    #[test]
    fn several_recipients_and_a_passphrase() {
        let (own, identity) = Identities::generate().unwrap();
        let both = Recipients::parse(&format!("{RECIPIENT}\n\n# me\n{own}\n"), "r").unwrap();
        assert_eq!(opened(&sealed(b"x", &both), &identity).unwrap(), b"x");
        let word = Secret::new("correct horse");
        let file = sealed(b"y", &Recipients::passphrase(word.clone()).with_work(10));
        assert_eq!(opened(&file, &Identities::passphrase(word)).unwrap(), b"y");
        let error = opened(&file, &Identities::passphrase(Secret::new("wrong"))).unwrap_err();
        assert_eq!(error.kind(), Kind::Denied);
        assert!(opened(&file, &identity).is_err());
    }

    #[test]
    fn no_file_makes_the_reader_panic() {
        let identity = Identities::parse(&Secret::new(IDENTITY), "i").unwrap();
        bolero::check!().for_each(|bytes: &[u8]| {
            let _ = opened(bytes, &identity);
            let _ = opened(&[header::VERSION.as_bytes(), b"\n", bytes].concat(), &identity);
        });
    }
}
