//! The looks of text on a terminal.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::diagnose) enum Style {
    Plain,
    Bold,
    Dim,
    /// Connections to the proxy.
    Proxy,
    Bypass,
    /// Obstacles and defects.
    Trouble,
}

impl Style {
    /// Text with the codes of this style around it (SGR, ECMA-48), if colours are wanted.
    pub(in crate::diagnose) fn paint(self, text: &str, colour: bool) -> String {
        let code = match self {
            Self::Bold => "1",
            Self::Dim => "2",
            Self::Proxy => "32",
            Self::Bypass => "33",
            Self::Trouble => "1;31",
            Self::Plain => "",
        };
        if !colour || code.is_empty() || text.is_empty() {
            return text.to_owned();
        }
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}
