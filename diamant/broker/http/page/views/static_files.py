"""The static files of the page: styles, scripts, libraries."""

from diamant.broker.http.page.making import assets
from diamant.broker.http.page.making.rendering import refused
from diamant.broker.http.serving.authorization import OPEN
from diamant.broker.http.serving.route import Route

ROUTES = (
    Route(
        "GET",
        "/static/{digest}/{name}",
        assets.serve,
        "A file of the page.",
        takes_any_query=True,
        refuse=refused,
        permission=OPEN,
    ),
)
