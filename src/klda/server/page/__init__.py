"""The page of `klda serve`: rendered on the server, updated by htmx.

Everyone who opens it wants one of six things, and each is a screen with an address of its own:

==========  =============  ====================================================================
address     screen         what it is for
==========  =============  ====================================================================
/           Try            ask one question, confirm or correct the answer
/inbox      Inbox          sort many texts without labels, with the keyboard alone
/classes    Classes        the table of classes, a drawer for each, and the map
/quality    Quality        how good the model is, and what to do next
/history    History        every change, with its undo
/connect    Connect        how programs use the model; /docs describes the API
==========  =============  ====================================================================

``/import`` brings examples out of a file, and a model without classes shows *First visit* instead
of *Try*. Around every screen stands the same frame: a rail on the left (on phones a bar at the
bottom), and a header with the model's name, its classes and examples, the accuracy to expect, the
role, and Undo.

Rules of the house:

- A screen is a template in ``templates/`` and a module here. The module asks the service; what it
  shows is escaped. Parts that htmx loads are under ``/page/``, where the gate checks the role.
- One place for messages (``#messages``), emptied by the next action; an error of a form stands in
  the form's ``.problem``. After a change the server triggers ``model-changed``, which every part
  that shows the model listens for; ``/page/events`` tells other tabs.
- Scripts do only what a list can't: keys, focus, the map, the questions asked last (kept in
  the browser's tab and nowhere else).
- Text is read in one column of at most 880 pixels; Classes, the map and tables use the width.
- People read *example* and "card arrival"; the label itself stays as it is.
"""

from klda.server.page import (  # noqa: F401, they add routes
    ask,
    class_map,
    classes,
    connect,
    history,
    importing,
    inbox,
    quality,
    sign_in,
    start,
)
from klda.server.page.render import STATIC, STATIC_URL, page_error
from klda.server.page.routes import router
from klda.server.page.state import PageState

__all__ = ["STATIC", "STATIC_URL", "PageState", "page_error", "router"]
