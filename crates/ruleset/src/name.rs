//! Names as the kernel holds them.

use std::fmt;

/// A name or a comment as the kernel holds it: bytes that need not be UTF-8.
///
/// When displayed, characters that can't be seen and bytes that aren't UTF-8 are escaped.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Name(Vec<u8>);

impl Name {
    /// This text, which isn't copied.
    pub fn of(text: String) -> Self {
        Self(text.into_bytes())
    }

    /// Without the NUL that ends it in the kernel.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl<T: AsRef<[u8]> + ?Sized> From<&T> for Name {
    fn from(bytes: &T) -> Self {
        Self(bytes.as_ref().to_owned())
    }
}

impl PartialEq<str> for Name {
    fn eq(&self, text: &str) -> bool {
        self.0 == text.as_bytes()
    }
}

/// Returns true if a character is invisible in print: a control character, one that reverses the direction of writing,
/// and others without a shape. Names and values that others chose may hold any.
pub fn is_hidden(character: char) -> bool {
    // Quotes and backslashes are visible, but `escape_debug` escapes them too.
    !matches!(character, '"' | '\'' | '\\') && character.escape_debug().len() > 1
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The usual case.
        if let Ok(text) = std::str::from_utf8(&self.0)
            && text.bytes().all(|byte| (b' '..0x7f).contains(&byte))
        {
            return f.write_str(text);
        }
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                if is_hidden(character) {
                    write!(f, "{}", character.escape_default())?;
                } else {
                    write!(f, "{character}")?;
                }
            }
            write!(f, "{}", chunk.invalid().escape_ascii())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_no_text_is_escaped() {
        for (bytes, want) in [
            (&b"KUBE-SERVICES"[..], "KUBE-SERVICES"),
            (b"\xff\xfe", r"\xff\xfe"),
            (b"KUBE\xff", r"KUBE\xff"),
            ("\u{e4}\n\u{1b}[31m".as_bytes(), "\u{e4}\\n\\u{1b}[31m"),
            ("\u{202e}\"'\\\u{e0041}".as_bytes(), r#"\u{202e}"'\\u{e0041}"#),
            (b"", ""),
        ] {
            assert_eq!(Name::from(bytes).to_string(), want);
            assert_eq!(format!("{:?}", Name::from(bytes)), format!("\"{want}\""));
            assert_eq!(Name::from(bytes).as_bytes(), bytes);
        }
        let nat = Name::from("nat");
        assert!(nat == *"nat" && nat != *"NAT");
        assert_eq!(Name::of("nat".to_owned()), nat);
    }
}
