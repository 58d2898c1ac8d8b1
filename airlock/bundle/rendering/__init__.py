"""Cards and dossiers as people and other programs read them: sentences, pages, figures, SACRO."""
