//! What the user looks at, and what the keys do to it.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::rows::{Column, DeviceLine, Id, KernelLine, Line, ProcessLine, RangeLine, SampleLine};
use crate::session::ProcessId;

/// A view of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tab {
    /// By process.
    Processes,
    /// By device.
    Devices,
    /// By kernel.
    Kernels,
    /// By NVTX range.
    Ranges,
    /// PC samples by line.
    Samples,
}

impl Tab {
    /// In the order of their keys, 1 and up.
    pub const ALL: [Self; 5] = [
        Self::Processes,
        Self::Devices,
        Self::Kernels,
        Self::Ranges,
        Self::Samples,
    ];

    /// Its name.
    pub fn title(self) -> &'static str {
        match self {
            Self::Processes => "Processes",
            Self::Devices => "Devices",
            Self::Kernels => "Kernels",
            Self::Ranges => "NVTX ranges",
            Self::Samples => "PC samples",
        }
    }

    fn columns(self) -> &'static [Column] {
        match self {
            Self::Processes => ProcessLine::COLUMNS,
            Self::Devices => DeviceLine::COLUMNS,
            Self::Kernels => KernelLine::COLUMNS,
            Self::Ranges => RangeLine::COLUMNS,
            Self::Samples => SampleLine::COLUMNS,
        }
    }

    fn index(self) -> usize {
        Self::ALL.iter().position(|t| *t == self).unwrap_or(0)
    }
}

/// What kernels and ranges are shown of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Everything.
    All,
    /// One process.
    Process(ProcessId),
    /// One device, as the devices' tab calls it.
    Device(String),
}

/// How a tab is looked at.
#[derive(Clone, Debug)]
pub struct Look {
    /// Column that it is sorted by.
    pub sort: usize,
    /// The largest first.
    pub falling: bool,
    /// Row under the cursor.
    pub cursor: Option<Id>,
    /// Its place when it was drawn last.
    pub at: usize,
    /// First row on the screen.
    pub offset: usize,
}

/// What a key asks for beyond the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing.
    None,
    /// Draw again.
    Draw,
    /// End.
    Quit,
}

/// State of the screen.
#[derive(Clone, Debug)]
pub struct Screen {
    /// The tab in front.
    pub tab: Tab,
    /// What it is limited to.
    pub filter: Filter,
    /// The keys are shown instead of the rows.
    pub help: bool,
    /// Rows that fit, as drawn last.
    pub height: usize,
    /// Ids of the rows as drawn last, in order.
    pub drawn: Vec<Id>,
    looks: [Look; Tab::ALL.len()],
}

impl Screen {
    /// Begins with a tab.
    pub fn new(tab: Tab) -> Self {
        let look = |sort| Look {
            sort,
            falling: true,
            cursor: None,
            at: 0,
            offset: 0,
        };
        Self {
            tab,
            filter: Filter::All,
            help: false,
            height: 1,
            drawn: Vec::new(),
            // GPU time, or the share of it.
            looks: [look(6), look(3), look(0), look(0), look(0)],
        }
    }

    /// How the tab in front is looked at.
    pub fn look(&mut self) -> &mut Look {
        &mut self.looks[self.tab.index()]
    }

    /// A key was pressed.
    pub fn key(&mut self, key: KeyEvent) -> Wish {
        if key.kind == KeyEventKind::Release {
            return Wish::None;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if control => return Wish::Quit,
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.help = !self.help,
            _ if self.help => self.help = false,
            KeyCode::Char(c @ '1'..='9') => {
                let wanted = Tab::ALL.get(c as usize - '1' as usize);
                self.tab = wanted.copied().unwrap_or(self.tab);
            }
            KeyCode::Tab => self.turn(1),
            KeyCode::BackTab => self.turn(Tab::ALL.len() - 1),
            KeyCode::Left | KeyCode::Char('<') => self.sort(-1),
            KeyCode::Right | KeyCode::Char('>') => self.sort(1),
            KeyCode::Char('r') => self.look().falling ^= true,
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::PageUp => self.go(-self.page()),
            KeyCode::PageDown => self.go(self.page()),
            KeyCode::Home | KeyCode::Char('g') => self.go(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.go(isize::MAX),
            KeyCode::Enter => self.enter(),
            KeyCode::Esc | KeyCode::Backspace => self.leave(),
            _ => return Wish::None,
        }
        Wish::Draw
    }

    fn turn(&mut self, by: usize) {
        self.tab = Tab::ALL[(self.tab.index() + by) % Tab::ALL.len()];
    }

    fn sort(&mut self, by: isize) {
        let columns = self.tab.columns().len();
        let look = self.look();
        look.sort = look.sort.saturating_add_signed(by).min(columns - 1);
    }

    fn page(&self) -> isize {
        isize::try_from(self.height).unwrap_or(isize::MAX)
    }

    fn go(&mut self, by: isize) {
        let last = self.drawn.len().saturating_sub(1);
        let at = self.look().at.saturating_add_signed(by).min(last);
        let cursor = self.drawn.get(at).cloned();
        let look = self.look();
        look.at = at;
        look.cursor = cursor;
    }

    fn enter(&mut self) {
        let at = self.look().at;
        match self.drawn.get(at) {
            Some(Id::Process(id)) => self.filter = Filter::Process(*id),
            Some(Id::Device(device)) => self.filter = Filter::Device(device.clone()),
            _ => return,
        }
        self.tab = Tab::Kernels;
    }

    fn leave(&mut self) {
        if self.filter != Filter::All {
            self.tab = match self.filter {
                Filter::Device(_) => Tab::Devices,
                _ => Tab::Processes,
            };
            self.filter = Filter::All;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(screen: &mut Screen, keys: &[KeyCode]) -> Wish {
        let mut wish = Wish::None;
        for key in keys {
            wish = screen.key(KeyEvent::from(*key));
        }
        wish
    }

    fn id(pid: u32) -> ProcessId {
        ProcessId { pid, start_ns: 1 }
    }

    #[test]
    fn keys_move_between_tabs_columns_and_rows() {
        let mut screen = Screen::new(Tab::Processes);
        press(&mut screen, &[KeyCode::Tab, KeyCode::Tab]);
        assert_eq!(screen.tab, Tab::Kernels);
        press(
            &mut screen,
            &[KeyCode::BackTab, KeyCode::Char('1'), KeyCode::Char('9')],
        );
        assert_eq!(screen.tab, Tab::Processes);
        press(
            &mut screen,
            &[
                KeyCode::Right,
                KeyCode::Right,
                KeyCode::Right,
                KeyCode::Char('r'),
            ],
        );
        assert_eq!((screen.look().sort, screen.look().falling), (8, false));
        for _ in 0..20 {
            press(&mut screen, &[KeyCode::Left]);
        }
        assert_eq!(screen.look().sort, 0);

        screen.drawn = (1..=30).map(|pid| Id::Process(id(pid))).collect();
        screen.height = 10;
        press(
            &mut screen,
            &[KeyCode::PageDown, KeyCode::Down, KeyCode::Up, KeyCode::Up],
        );
        assert_eq!(screen.look().at, 9);
        press(&mut screen, &[KeyCode::End]);
        assert_eq!(screen.look().at, 29);
        press(&mut screen, &[KeyCode::Down]);
        assert_eq!(screen.look().cursor, Some(Id::Process(id(30))));
        press(&mut screen, &[KeyCode::Home]);
        assert_eq!(screen.look().at, 0);
    }

    #[test]
    fn a_process_is_entered_and_left() {
        let mut screen = Screen::new(Tab::Processes);
        press(&mut screen, &[KeyCode::Enter]);
        assert_eq!(screen.tab, Tab::Processes, "there is none");
        screen.drawn = vec![Id::Process(id(7))];
        press(&mut screen, &[KeyCode::Enter]);
        assert_eq!(
            (screen.tab, &screen.filter),
            (Tab::Kernels, &Filter::Process(id(7)))
        );
        press(&mut screen, &[KeyCode::Esc]);
        assert_eq!((screen.tab, &screen.filter), (Tab::Processes, &Filter::All));
    }

    #[test]
    fn help_and_the_end() {
        let mut screen = Screen::new(Tab::Kernels);
        press(&mut screen, &[KeyCode::Char('?')]);
        assert!(screen.help);
        press(&mut screen, &[KeyCode::Char('1')]);
        assert!(
            !screen.help && screen.tab == Tab::Kernels,
            "any key leaves the help"
        );
        assert_eq!(press(&mut screen, &[KeyCode::Char('q')]), Wish::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(screen.key(interrupt), Wish::Quit);
        assert_eq!(press(&mut screen, &[KeyCode::F(7)]), Wish::None);
    }
}
